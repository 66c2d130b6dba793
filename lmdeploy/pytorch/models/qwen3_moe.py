"""Qwen3 with experts."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lmdeploy.pytorch.models.qwen2_moe import MoeForCausalLM, RoutedExperts, has_experts
from lmdeploy.pytorch.models.qwen3 import Qwen3DecoderLayer


class Qwen3MoeDecoderLayer(Qwen3DecoderLayer):
    """A layer."""

    def build_mlp(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None, device: torch.device | str | None
    ) -> nn.Module:
        """Return the MLP of the layer."""
        if has_experts(config, layer_idx):
            return RoutedExperts(config, dtype=dtype, device=device)
        return super().build_mlp(config, layer_idx, dtype, device)


class Qwen3MoeForCausalLM(MoeForCausalLM):
    """Qwen3 with experts, and its head."""

    layer_class = Qwen3MoeDecoderLayer
