"""Gemma 2: norms before and after both halves, soft caps, every other layer with a window."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.models.llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    LlamaMLP,
    Rotation,
    head_dim_of,
    window_of,
)
from lmdeploy.pytorch.nn import Attention, GeluAndMul, RMSNorm
from lmdeploy.pytorch.step_context import StepContextManager


class Gemma2Attention(LlamaAttention):
    """The attention of a layer."""

    def __init__(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        super().__init__(config, layer_idx, dtype=dtype, device=device)
        self.attn_fwd = Attention(
            config.num_attention_heads,
            head_dim_of(config),
            scale=config.query_pre_attn_scalar**-0.5,
            num_kv_heads=config.num_key_value_heads,
            sliding_window=window_of(config, layer_idx),
            logit_softcapping=config.attn_logit_softcapping,
        )


class Gemma2DecoderLayer(LlamaDecoderLayer):
    """A layer."""

    attention_class = Gemma2Attention

    def __init__(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        super().__init__(config, layer_idx, dtype=dtype, device=device)

        def norm() -> RMSNorm:
            return RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device, offset=1.0)

        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = norm(), norm()

    def build_mlp(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None, device: torch.device | str | None
    ) -> nn.Module:
        """Return the MLP of the layer."""
        if config.hidden_activation != "gelu_pytorch_tanh":
            raise UnsupportedModelError(f"Gemma 2 with the activation {config.hidden_activation} is not supported")
        mlp = LlamaMLP(config, dtype=dtype, device=device)
        mlp.act_fn = GeluAndMul(approximate="tanh")
        return mlp

    def forward(
        self,
        hidden_states: torch.Tensor,
        rotary_pos_emb: Rotation,
        past_key_value: Any,
        residual: torch.Tensor | None,
        attn_metadata: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the second half's output, and the residual stream it is still to be added to."""
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(hidden_states, rotary_pos_emb, past_key_value, attn_metadata)
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states, residual = self.pre_feedforward_layernorm(hidden_states, residual)
        return self.post_feedforward_layernorm(self.mlp(hidden_states)), residual


class ScaledEmbedding(nn.Module):
    """The embedding, times the root of the hidden size as the weights' type has it."""

    def __init__(self, table: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self._table = [table]  # whose parameters have their own place in the model
        self._factor = float(torch.tensor(hidden_size**0.5, dtype=table.weight.dtype))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return ``[..., hidden]`` for token ids ``[...]``."""
        return self._table[0](input_ids) * self._factor


class Gemma2ForCausalLM(LlamaForCausalLM):
    """Gemma 2, with its head."""

    layer_class = Gemma2DecoderLayer

    def __init__(
        self,
        config: Any,
        ctx_mgr: StepContextManager,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(config, ctx_mgr, dtype=dtype, device=device)
        self.model.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype=dtype, device=device, offset=1.0)
        self._scaled = ScaledEmbedding(self.model.embed_tokens, config.hidden_size)

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
        if inputs_embeds is None:
            inputs_embeds = self._scaled(input_ids)
        return self.model(input_ids, position_ids, past_key_values, attn_metadata, inputs_embeds)

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding of tokens."""
        return self._scaled

    def update_weights(self) -> None:
        """Let the head have the embedding's weights."""
        self.lm_head.weight = self.model.embed_tokens.weight

    def get_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return logits ``[..., vocab]`` of hidden states that ``forward`` returned."""
        logits = self.lm_head(hidden_states)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else cap * torch.tanh(logits / cap)
