"""Llama, and families that are Llama but for a bias, a norm or a window: Mistral, Qwen2, Qwen3."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import nn

from lmdeploy.pytorch.models.utils.cudagraph import CudaGraphMixin
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
    build_rotary_embedding_from_config,
    build_rowwise_linear,
)
from lmdeploy.pytorch.step_context import StepContext, StepContextManager
from lmdeploy.pytorch.weight_loader.model_weight_loader import load_weight

Rotation = tuple[torch.Tensor, torch.Tensor]  # cosines and sines, [rows, dim]


def head_dim_of(config: Any) -> int:
    """Return the channels of a head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def window_of(config: Any, layer: int) -> int | None:
    """Return how many positions a layer's tokens see; None: all."""
    kinds = getattr(config, "layer_types", None)
    if kinds and kinds[layer] != "sliding_attention":
        return None
    window = getattr(config, "sliding_window", None)
    return None if window is None else int(window)


class LlamaAttention(nn.Module):
    """The attention of a layer."""

    def __init__(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, head_dim_of(config)
        qkv_bias, o_bias = self.biases(config)
        self.qkv_proj = build_qkv_proj(
            config.hidden_size,
            num_q_heads=heads,
            num_kv_heads=kv_heads,
            head_size=head_dim,
            bias=qkv_bias,
            dtype=dtype,
            device=device,
        )
        self.apply_rotary_pos_emb = ApplyRotaryEmb()
        self.attn_fwd = Attention(heads, head_dim, num_kv_heads=kv_heads, sliding_window=window_of(config, layer_idx))
        self.o_proj = build_o_proj(
            heads * head_dim, config.hidden_size, bias=o_bias, dtype=dtype, device=device, is_tp=True
        )

    def biases(self, config: Any) -> tuple[bool, bool]:
        """Return whether the projections to heads, and from them, have a bias."""
        bias = bool(getattr(config, "attention_bias", False))
        return bias, bias

    def norm_heads(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries and keys as they are rotated."""
        return query, key

    def forward(
        self, hidden_states: torch.Tensor, rotary_pos_emb: Rotation, past_key_value: Any, attn_metadata: Any
    ) -> torch.Tensor:
        """Return ``[1, tokens, hidden]``."""
        qkv_states = self.qkv_proj(hidden_states).flatten(0, -2)
        query, key, value = self.qkv_proj.split_qkv(qkv_states)
        query, key = self.norm_heads(query, key)
        query, key = self.apply_rotary_pos_emb(query, key, *rotary_pos_emb)
        output = self.attn_fwd(query, key, value, past_key_value[0], past_key_value[1], attn_metadata)
        return self.o_proj(output.reshape(*hidden_states.shape[:-1], -1))


class LlamaMLP(nn.Module):
    """The gated MLP of a layer."""

    def __init__(
        self,
        config: Any,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        intermediate_size: int | None = None,
    ) -> None:
        super().__init__()
        size = intermediate_size or config.intermediate_size
        bias = bool(getattr(config, "mlp_bias", False))
        self.gate_up_proj = build_gateup_linear(config.hidden_size, [size, size], bias=bias, dtype=dtype, device=device)
        self.act_fn = SiluAndMul(inplace=True)
        self.down_proj = build_down_linear(size, config.hidden_size, bias=bias, dtype=dtype, device=device, is_tp=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[..., hidden]``."""
        return self.down_proj(self.act_fn(self.gate_up_proj(x)))


class LlamaDecoderLayer(nn.Module):
    """A layer: attention and MLP, each on a norm of the residual stream."""

    attention_class: ClassVar[type[LlamaAttention]] = LlamaAttention

    def __init__(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.self_attn = self.attention_class(config, layer_idx, dtype=dtype, device=device)
        self.mlp = self.build_mlp(config, layer_idx, dtype, device)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device)

    def build_mlp(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None, device: torch.device | str | None
    ) -> nn.Module:
        """Return the MLP of the layer."""
        return LlamaMLP(config, dtype=dtype, device=device)

    def forward(
        self,
        hidden_states: torch.Tensor,
        rotary_pos_emb: Rotation,
        past_key_value: Any,
        residual: torch.Tensor | None,
        attn_metadata: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the MLP's output, and the residual stream it is still to be added to."""
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(hidden_states, rotary_pos_emb, past_key_value, attn_metadata)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


class LlamaModel(nn.Module):
    """Embedding, layers and the last norm."""

    def __init__(
        self,
        config: Any,
        layer_class: type[LlamaDecoderLayer] = LlamaDecoderLayer,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.embed_tokens = build_embedding(config.vocab_size, config.hidden_size, dtype=dtype, device=device)
        self.layers = nn.ModuleList(
            [layer_class(config, number, dtype=dtype, device=device) for number in range(config.num_hidden_layers)]
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device)
        self.rotary_emb = build_rotary_embedding_from_config(config)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        position_ids: torch.Tensor,
        past_key_values: list[Any],
        attn_metadata: Any = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the hidden states ``[1, tokens, hidden]`` after the last norm."""
        hidden_states = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        cos, sin = self.rotary_emb(hidden_states, position_ids)
        rotary_pos_emb = (cos[0], sin[0])
        residual = None
        for layer, past_key_value in zip(self.layers, past_key_values, strict=True):
            hidden_states, residual = layer(hidden_states, rotary_pos_emb, past_key_value, residual, attn_metadata)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states


class LlamaForCausalLM(nn.Module, CudaGraphMixin):
    """Llama, with its head."""

    layer_class: ClassVar[type[LlamaDecoderLayer]] = LlamaDecoderLayer
    # Part of a parameter's name, of a tensor's name, and which part of the parameter the tensor is.
    stacked_params_mapping: ClassVar[tuple[tuple[str, str, Any], ...]] = (
        (".qkv_proj", ".q_proj", "q"),
        (".qkv_proj", ".k_proj", "k"),
        (".qkv_proj", ".v_proj", "v"),
        (".gate_up_proj", ".gate_proj", 0),
        (".gate_up_proj", ".up_proj", 1),
    )

    def __init__(
        self,
        config: Any,
        ctx_mgr: StepContextManager,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.ctx_mgr = ctx_mgr
        self.model = LlamaModel(config, self.layer_class, dtype=dtype, device=device)
        self.lm_head = build_rowwise_linear(
            config.hidden_size, config.vocab_size, bias=False, dtype=dtype, device=device
        )

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding of tokens."""
        return self.model.embed_tokens

    def forward(
        self,
        input_ids: torch.Tensor | None,
        position_ids: torch.Tensor,
        past_key_values: list[Any],
        attn_metadata: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Return the hidden states ``[1, tokens, hidden]`` after the last norm."""
        return self.model(input_ids, position_ids, past_key_values, attn_metadata, inputs_embeds)

    def get_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return logits ``[..., vocab]`` of hidden states that ``forward`` returned."""
        return self.lm_head(hidden_states)

    def prepare_inputs_for_generation(
        self, past_key_values: list[Any], inputs_embeds: torch.Tensor | None = None, context: StepContext | None = None
    ) -> dict[str, Any]:
        """Return the arguments of ``forward`` for a step."""
        step = context or self.ctx_mgr.current_context()
        if step.input_embeddings is not None:
            inputs_embeds = step.embed(self.get_input_embeddings(), inputs_embeds)
        return {
            "input_ids": step.input_ids,
            "position_ids": step.position_ids,
            "past_key_values": past_key_values,
            "attn_metadata": step.attn_metadata,
            "inputs_embeds": inputs_embeds,
        }

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load the tensors of a checkpoint."""
        parameters = dict(self.named_parameters())
        for name, tensor in weights:
            if "rotary_emb.inv_freq" in name:
                continue
            if name == "lm_head.weight" and self.config.tie_word_embeddings:
                continue
            self.load_one(parameters, name, tensor)

    def load_one(self, parameters: dict[str, nn.Parameter], name: str, tensor: torch.Tensor) -> None:
        """Load a tensor of a checkpoint."""
        for param_name, weight_name, shard_id in self.stacked_params_mapping:
            if weight_name in name:
                load_weight(parameters[name.replace(weight_name, param_name)], tensor, shard_id=shard_id)
                return
        load_weight(parameters[name], tensor)
