"""ChatGLM2, ChatGLM3 and GLM-4 in the layout they are published in: half of each head is rotated, in neighbours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.models.utils.cudagraph import CudaGraphMixin
from lmdeploy.pytorch.models.utils.inputs import inputs_of
from lmdeploy.pytorch.nn import (
    ApplyRotaryEmb,
    Attention,
    RMSNorm,
    SiluAndMul,
    build_down_linear,
    build_embedding,
    build_gateup_linear,
    build_o_proj,
    build_qkv_proj,
    build_rotary_embedding,
    build_rowwise_linear,
)
from lmdeploy.pytorch.step_context import StepContext, StepContextManager
from lmdeploy.pytorch.weight_loader.model_weight_loader import load_weight

_BASE = 10000.0


class SelfAttention(nn.Module):
    """The attention of a layer."""

    def __init__(self, config: Any, dtype: torch.dtype | None, device: torch.device | str | None) -> None:
        super().__init__()
        quant_config = getattr(config, "quantization_config", None)
        heads, dim = config.num_attention_heads, config.kv_channels
        kv_heads = config.multi_query_group_num if config.multi_query_attention else heads
        bias = getattr(config, "add_bias_linear", False)
        self.query_key_value = build_qkv_proj(
            config.hidden_size,
            num_q_heads=heads,
            num_kv_heads=kv_heads,
            head_size=dim,
            bias=bias or getattr(config, "add_qkv_bias", False),
            quant_config=quant_config,
            dtype=dtype,
            device=device,
        )
        self.apply_rotary_pos_emb = ApplyRotaryEmb(is_interleaved=True)
        self.core_attention = Attention(heads, dim, num_kv_heads=kv_heads)
        self.dense = build_o_proj(
            heads * dim,
            config.hidden_size,
            bias=bias,
            quant_config=quant_config,
            dtype=dtype,
            device=device,
            is_tp=True,
        )

    def forward(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], past_key_value: Any, attn_metadata: Any
    ) -> torch.Tensor:
        """Return ``[1, tokens, hidden]``."""
        query, key, value = self.query_key_value.split_qkv(self.query_key_value(x).flatten(0, -2))
        query, key = self.apply_rotary_pos_emb(query, key, *rotation)
        attended = self.core_attention(query, key, value, past_key_value[0], past_key_value[1], attn_metadata)
        return self.dense(attended.reshape(*x.shape[:-1], -1))


class MLP(nn.Module):
    """The gated MLP of a layer."""

    def __init__(self, config: Any, dtype: torch.dtype | None, device: torch.device | str | None) -> None:
        super().__init__()
        quant_config = getattr(config, "quantization_config", None)
        size, bias = config.ffn_hidden_size, getattr(config, "add_bias_linear", False)
        self.dense_h_to_4h = build_gateup_linear(
            config.hidden_size, [size, size], bias=bias, dtype=dtype, device=device, quant_config=quant_config
        )
        self.act_fn = SiluAndMul(inplace=True)
        self.dense_4h_to_h = build_down_linear(
            size, config.hidden_size, bias=bias, quant_config=quant_config, dtype=dtype, device=device, is_tp=True
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[..., hidden]``."""
        return self.dense_4h_to_h(self.act_fn(self.dense_h_to_4h(x)))


class GLMBlock(nn.Module):
    """A layer."""

    def __init__(self, config: Any, dtype: torch.dtype | None, device: torch.device | str | None) -> None:
        super().__init__()
        eps = config.layernorm_epsilon
        self.input_layernorm = RMSNorm(config.hidden_size, eps, dtype=dtype, device=device)
        self.self_attention = SelfAttention(config, dtype, device)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps, dtype=dtype, device=device)
        self.mlp = MLP(config, dtype, device)

    def forward(
        self,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        past_key_value: Any,
        residual: torch.Tensor | None,
        attn_metadata: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the MLP's output, and the residual stream it is still to be added to."""
        if residual is None:
            x, residual = self.input_layernorm(x), x
        else:
            x, residual = self.input_layernorm(x, residual)
        x = self.self_attention(x, rotation, past_key_value, attn_metadata)
        x, residual = self.post_attention_layernorm(x, residual)
        return self.mlp(x), residual


class GLMTransformer(nn.Module):
    """The layers and the last norm."""

    def __init__(self, config: Any, dtype: torch.dtype | None, device: torch.device | str | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList([GLMBlock(config, dtype, device) for _ in range(config.num_layers)])
        self.final_layernorm = RMSNorm(config.hidden_size, config.layernorm_epsilon, dtype=dtype, device=device)


class ChatGLMModel(nn.Module):
    """Embedding, layers, the last norm and the head."""

    def __init__(self, config: Any, dtype: torch.dtype | None, device: torch.device | str | None) -> None:
        super().__init__()
        self.embedding = nn.ModuleDict(
            {"word_embeddings": build_embedding(config.padded_vocab_size, config.hidden_size, None, dtype, device)}
        )
        base = _BASE * getattr(config, "rope_ratio", 1.0)
        self.rotary_pos_emb = build_rotary_embedding(config.kv_channels // 2, config.seq_length, base)
        self.encoder = GLMTransformer(config, dtype, device)
        self.output_layer = build_rowwise_linear(
            config.hidden_size, config.padded_vocab_size, bias=False, dtype=dtype, device=device
        )

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        past_key_values: list[Any],
        attn_metadata: Any,
        inputs_embeds: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the hidden states ``[1, tokens, hidden]`` after the last norm."""
        x = self.embedding["word_embeddings"](input_ids) if inputs_embeds is None else inputs_embeds
        cos, sin = self.rotary_pos_emb(x, position_ids)
        residual = None
        for layer, past_key_value in zip(self.encoder.layers, past_key_values, strict=True):
            x, residual = layer(x, (cos[0], sin[0]), past_key_value, residual, attn_metadata)
        x, _ = self.encoder.final_layernorm(x, residual)
        return x


class ChatGLMForConditionalGeneration(nn.Module, CudaGraphMixin):
    """ChatGLM, with its head."""

    def __init__(
        self,
        config: Any,
        ctx_mgr: StepContextManager,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if not getattr(config, "rmsnorm", True) or getattr(config, "apply_residual_connection_post_layernorm", False):
            raise UnsupportedModelError(
                "ChatGLM with LayerNorm, or a residual stream behind its norms, is not supported"
            )
        if not getattr(config, "post_layer_norm", True):
            raise UnsupportedModelError("ChatGLM without a last norm is not supported")
        self.config = config
        self.ctx_mgr = ctx_mgr
        self.transformer = ChatGLMModel(config, dtype, device)

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding of tokens."""
        return self.transformer.embedding["word_embeddings"]

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        past_key_values: list[Any],
        attn_metadata: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Return the hidden states ``[1, tokens, hidden]`` after the last norm."""
        return self.transformer(input_ids, position_ids, past_key_values, attn_metadata, inputs_embeds)

    def get_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return logits ``[..., vocab]`` of hidden states that ``forward`` returned."""
        return self.transformer.output_layer(hidden_states)

    def prepare_inputs_for_generation(
        self, past_key_values: list[Any], inputs_embeds: torch.Tensor | None = None, context: StepContext | None = None
    ) -> dict[str, Any]:
        """Return what ``forward`` takes for a step."""
        step = context or self.ctx_mgr.current_context()
        return inputs_of(step, past_key_values, inputs_embeds, self.get_input_embeddings())

    def update_weights(self) -> None:
        """Let the head have the embedding's weights, where the configuration says so."""
        if getattr(self.config, "tie_word_embeddings", False):
            self.transformer.output_layer.weight = self.get_input_embeddings().weight

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load the tensors of a checkpoint: names are the published ones, joined matrices are as in the layers."""
        parameters = dict(self.named_parameters())
        for name, tensor in weights:
            if "rotary_pos_emb" not in name:
                load_weight(parameters[name], tensor)
