"""Qwen3: Llama with a norm of each query and key head; with experts, of Qwen3-VL in one tensor a layer [in, out]."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lmdeploy.pytorch.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, head_dim_of
from lmdeploy.pytorch.models.qwen2 import MoeForCausalLM, RoutedExperts, has_experts
from lmdeploy.pytorch.nn import RMSNorm
from lmdeploy.pytorch.quantized_weights import require_numbers
from lmdeploy.pytorch.weight_loader.model_weight_loader import load_weight


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


_GATE_UP, _DOWN = ".experts.gate_up_proj", ".experts.down_proj"


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


class Qwen3VLMoeForCausalLM(Qwen3MoeForCausalLM):
    """The text part of Qwen3-VL with experts, with its head."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        config.norm_topk_prob = True  # always, so that its configuration has no such field
        super().__init__(config, *args, **kwargs)

    def load_one(self, parameters: dict[str, nn.Parameter], name: str, tensor: torch.Tensor) -> None:
        """Load a tensor of a checkpoint."""
        if not name.endswith((_GATE_UP, _DOWN)):
            super().load_one(parameters, name, tensor)
            return
        require_numbers(tensor)
        is_down = name.endswith(_DOWN)
        parts = {"down": tensor} if is_down else dict(zip(("gate", "up"), tensor.chunk(2, -1), strict=True))
        parameter = parameters[f"{name.rpartition('.')[0]}.{'down' if is_down else 'gate_up'}.weight"]
        for part, experts in parts.items():
            for number, matrix in enumerate(experts):
                load_weight(parameter, matrix.t(), expert_id=number, shard_id=part)
