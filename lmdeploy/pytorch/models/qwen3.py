"""Qwen3: Llama with a norm of each query and key head."""

from __future__ import annotations

from typing import Any

import torch

from lmdeploy.pytorch.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, head_dim_of
from lmdeploy.pytorch.nn import RMSNorm


class Qwen3Attention(LlamaAttention):
    """The attention of a layer."""

    def __init__(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        super().__init__(config, layer_idx, dtype=dtype, device=device)
        self.q_norm = RMSNorm(head_dim_of(config), config.rms_norm_eps, dtype=dtype, device=device)
        self.k_norm = RMSNorm(head_dim_of(config), config.rms_norm_eps, dtype=dtype, device=device)

    def norm_heads(self, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries and keys as they are rotated."""
        return self.q_norm(query), self.k_norm(key)


class Qwen3DecoderLayer(LlamaDecoderLayer):
    """A layer."""

    attention_class = Qwen3Attention


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Qwen3, with its head."""

    layer_class = Qwen3DecoderLayer
