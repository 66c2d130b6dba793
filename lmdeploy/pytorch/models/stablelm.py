"""StableLM: Llama with LayerNorm, a partial rotation, and in some both halves of a layer on one norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, Rotation
from lmdeploy.pytorch.step_context import StepContextManager


class LayerNorm(nn.LayerNorm):
    """LayerNorm, with the addition of the residual stream before it."""

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of ``x``; with ``residual``, that of their sum, and the sum."""
        total = x if residual is None else x + residual
        normed = functional.layer_norm(
            total.float(), self.normalized_shape, self.weight.float(), self.bias.float(), self.eps
        ).to(x.dtype)
        return normed if residual is None else (normed, total)


class StableLmAttention(LlamaAttention):
    """The attention of a layer."""

    def biases(self, config: Any) -> tuple[bool, bool]:
        """Return whether the projections to heads, and from them, have a bias."""
        return bool(config.use_qkv_bias), False


class StableLmDecoderLayer(LlamaDecoderLayer):
    """A layer."""

    attention_class = StableLmAttention

    def __init__(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        super().__init__(config, layer_idx, dtype=dtype, device=device)
        self._is_parallel = bool(config.use_parallel_residual)
        self._shares_norm = self._is_parallel and not getattr(config, "has_two_norms", False)
        self.input_layernorm = _norm(config, dtype, device)
        if self._shares_norm:
            del self.post_attention_layernorm
        else:
            self.post_attention_layernorm = _norm(config, dtype, device)

    def forward(
        self,
        hidden_states: torch.Tensor,
        rotary_pos_emb: Rotation,
        past_key_value: Any,
        residual: torch.Tensor | None,
        attn_metadata: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the MLP's output, and the residual stream it is still to be added to."""
        if not self._is_parallel:
            return super().forward(hidden_states, rotary_pos_emb, past_key_value, residual, attn_metadata)
        residual = hidden_states if residual is None else hidden_states + residual
        normed = self.input_layernorm(residual)
        attended = self.self_attn(normed, rotary_pos_emb, past_key_value, attn_metadata)
        mlp_input = normed if self._shares_norm else self.post_attention_layernorm(residual)
        return self.mlp(mlp_input), residual + attended


class StableLmForCausalLM(LlamaForCausalLM):
    """StableLM, with its head."""

    layer_class = StableLmDecoderLayer

    def __init__(
        self,
        config: Any,
        ctx_mgr: StepContextManager,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if getattr(config, "qk_layernorm", False):
            raise UnsupportedModelError(
                "StableLM with norms of each head (12B) is not supported by models of lmdeploy.pytorch; the TurboMind "
                "engine runs it"
            )
        config.rms_norm_eps = config.layer_norm_eps
        super().__init__(config, ctx_mgr, dtype, device)
        self.model.norm = _norm(config, dtype, device)


def _norm(config: Any, dtype: torch.dtype | None, device: torch.device | str | None) -> LayerNorm:
    return LayerNorm(config.hidden_size, config.layer_norm_eps, dtype=dtype, device=device)
