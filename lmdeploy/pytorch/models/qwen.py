"""Qwen 1: Llama under names of its own; beyond the trained length dynamic NTK, and queries grow with their position."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import nn

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM
from lmdeploy.pytorch.nn.rotary_embedding import RotaryEmbedding, build_rotary_embedding
from lmdeploy.pytorch.step_context import StepContextManager, get_step_ctx_manager

# From a tensor's name to Llama's.
_NAMES = (
    (r"^transformer\.wte\.", "model.embed_tokens."),
    (r"^transformer\.ln_f\.", "model.norm."),
    (r"^transformer\.h\.", "model.layers."),
    (r"\.attn\.c_attn\.", ".self_attn.qkv_proj."),
    (r"\.attn\.c_proj\.", ".self_attn.o_proj."),
    (r"\.ln_1\.", ".input_layernorm."),
    (r"\.ln_2\.", ".post_attention_layernorm."),
    (r"\.mlp\.w2\.", ".mlp.gate_proj."),
    (r"\.mlp\.w1\.", ".mlp.up_proj."),
    (r"\.mlp\.c_proj\.", ".mlp.down_proj."),
)


class QwenRotaryEmbedding(RotaryEmbedding):
    """The base grows with each doubling of the trained length that a sequence's own prompt is longer."""

    def __init__(self, dim: int, base: float, trained_length: int) -> None:
        super().__init__(build_rotary_embedding(dim, trained_length, base).inv_freq)
        self._dim, self._base, self._trained = dim, base, trained_length

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines as `RotaryEmbedding.forward` does."""
        step = get_step_ctx_manager().current_context()
        prompts = step.kv_seqlens if step.prompt_lens is None else step.prompt_lens
        if int(prompts.max()) <= self._trained:
            return super().forward(x, position_ids)
        length = prompts.repeat_interleave(step.q_seqlens).clamp(min=self._trained).double()
        growth = torch.exp2((length / self._trained).log2().ceil() + (length > self._trained)) - 1
        base = self._base * growth.clamp(min=1) ** (self._dim / (self._dim - 2))
        exponent = torch.arange(0, self._dim, 2, device=base.device).double() / self._dim
        return self._turned(position_ids[..., None].float() * (base[:, None] ** -exponent)[None].float())


class QwenAttention(LlamaAttention):
    """The attention of a layer."""

    def __init__(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        super().__init__(config, layer_idx, dtype=dtype, device=device)
        self._trained = config.seq_length if getattr(config, "use_logn_attn", False) else 0

    def biases(self, config: Any) -> tuple[bool, bool]:
        """Return whether the projections to heads, and from them, have a bias."""
        return True, not getattr(config, "no_bias", True)

    def norm_heads(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries times the logarithm of their position to the trained length, and keys as they are."""
        if not self._trained:
            return query, key
        positions = get_step_ctx_manager().current_context().position_ids[0]
        scale = (positions + 1).double().log().div(math.log(self._trained)).clamp(min=1)
        return query * scale.to(query.dtype)[:, None, None], key


class QwenDecoderLayer(LlamaDecoderLayer):
    """A layer."""

    attention_class = QwenAttention


class QWenLMHeadModel(LlamaForCausalLM):
    """Qwen 1, with its head."""

    layer_class = QwenDecoderLayer

    def __init__(
        self,
        config: Any,
        ctx_mgr: StepContextManager,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if getattr(config, "rotary_pct", 1.0) != 1.0:
            raise UnsupportedModelError("Qwen with rotary_pct below 1 is not supported")
        config.rms_norm_eps = config.layer_norm_epsilon
        config.intermediate_size //= 2  # of gate and up together
        config.num_key_value_heads = config.num_attention_heads
        config.head_dim = config.kv_channels
        config.mlp_bias = not getattr(config, "no_bias", True)
        base = float(getattr(config, "rotary_emb_base", 10000.0))
        config.rope_parameters = {"rope_type": "default", "rope_theta": base}
        super().__init__(config, ctx_mgr, dtype, device)
        if getattr(config, "use_dynamic_ntk", False):
            self.model.rotary_emb = QwenRotaryEmbedding(config.kv_channels, base, config.seq_length)

    def load_one(self, parameters: dict[str, nn.Parameter], name: str, tensor: torch.Tensor) -> None:
        """Load a tensor of a checkpoint."""
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        super().load_one(parameters, name, tensor)
