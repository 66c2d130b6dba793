"""DeepSeek-MoE: Llama with small experts, some of which all tokens share, after the first layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.models.llama import LlamaDecoderLayer, LlamaMLP
from lmdeploy.pytorch.models.qwen2_moe import MoeForCausalLM, RoutedExperts
from lmdeploy.pytorch.step_context import StepContextManager


class DeepseekSparseBlock(RoutedExperts):
    """Experts, and those that all tokens share."""

    def __init__(self, config: Any, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> None:
        super().__init__(config, dtype=dtype, device=device)
        size = (getattr(config, "n_shared_experts", None) or 0) * config.moe_intermediate_size
        self.shared_experts = LlamaMLP(config, dtype=dtype, device=device, intermediate_size=size) if size else None

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return ``[1, tokens, hidden]``."""
        chosen = super().forward(hidden_states)
        return chosen if self.shared_experts is None else chosen + self.shared_experts(hidden_states)


class DeepseekDecoderLayer(LlamaDecoderLayer):
    """A layer."""

    def build_mlp(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None, device: torch.device | str | None
    ) -> nn.Module:
        """Return the MLP of the layer."""
        is_first = layer_idx < getattr(config, "first_k_dense_replace", 0)
        if is_first or layer_idx % getattr(config, "moe_layer_freq", 1):
            return super().build_mlp(config, layer_idx, dtype, device)
        return DeepseekSparseBlock(config, dtype=dtype, device=device)


class DeepseekForCausalLM(MoeForCausalLM):
    """DeepSeek-MoE, with its head."""

    layer_class = DeepseekDecoderLayer

    def __init__(
        self,
        config: Any,
        ctx_mgr: StepContextManager,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        scoring = getattr(config, "scoring_func", "softmax")
        if scoring != "softmax":
            raise UnsupportedModelError(f"DeepSeek-MoE with scoring_func {scoring!r} is not supported")
        config.num_experts = config.n_routed_experts
        config.norm_topk_prob = getattr(config, "norm_topk_prob", False)
        config.num_key_value_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        super().__init__(config, ctx_mgr, dtype, device)
