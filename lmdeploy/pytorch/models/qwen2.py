"""Qwen2: Llama with a bias on the way to the heads; and with experts."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from lmdeploy.pytorch.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP
from lmdeploy.pytorch.nn import SoftmaxTopK, build_fused_moe, build_linear
from lmdeploy.pytorch.weight_loader.model_weight_loader import load_weight


class Qwen2Attention(LlamaAttention):
    """The attention of a layer."""

    def biases(self, config: Any) -> tuple[bool, bool]:
        """Return whether the projections to heads, and from them, have a bias."""
        return bool(getattr(config, "qkv_bias", True)), False


class Qwen2DecoderLayer(LlamaDecoderLayer):
    """A layer."""

    attention_class = Qwen2Attention


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Qwen2, with its head."""

    layer_class = Qwen2DecoderLayer


_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


class RoutedExperts(nn.Module):
    """A router and its experts."""

    def __init__(self, config: Any, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.gate = build_linear(config.hidden_size, config.num_experts, bias=False, dtype=dtype, device=device)
        self.softmax_topk = SoftmaxTopK(config.num_experts_per_tok)
        self.experts = build_fused_moe(
            config.hidden_size,
            config.moe_intermediate_size,
            config.num_experts,
            top_k=config.num_experts_per_tok,
            renormalize=config.norm_topk_prob,
            dtype=dtype,
            device=device,
        )

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return ``[1, tokens, hidden]``."""
        tokens = hidden_states.flatten(0, -2)
        weights, ids = self.softmax_topk(self.gate(tokens))
        return self.experts(tokens, weights, ids).view_as(hidden_states)


class Qwen2MoeSparseBlock(RoutedExperts):
    """Experts, and one that all tokens share, behind a gate."""

    def __init__(self, config: Any, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> None:
        super().__init__(config, dtype=dtype, device=device)
        size = config.shared_expert_intermediate_size
        self.shared_expert = LlamaMLP(config, dtype=dtype, device=device, intermediate_size=size)
        self.shared_expert_gate = build_linear(config.hidden_size, 1, bias=False, dtype=dtype, device=device)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return ``[1, tokens, hidden]``."""
        shared = self.shared_expert(hidden_states) * self.shared_expert_gate(hidden_states).sigmoid()
        return super().forward(hidden_states) + shared


def has_experts(config: Any, layer_idx: int) -> bool:
    """Return whether a layer has experts, or an MLP for all."""
    is_its_turn = (layer_idx + 1) % config.decoder_sparse_step == 0
    return layer_idx not in config.mlp_only_layers and config.num_experts > 0 and is_its_turn


class Qwen2MoeDecoderLayer(Qwen2DecoderLayer):
    """A layer."""

    def build_mlp(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None, device: torch.device | str | None
    ) -> nn.Module:
        """Return the MLP of the layer."""
        if has_experts(config, layer_idx):
            return Qwen2MoeSparseBlock(config, dtype=dtype, device=device)
        return super().build_mlp(config, layer_idx, dtype, device)


class MoeForCausalLM(LlamaForCausalLM):
    """A model with experts, each a tensor in the checkpoint."""

    def load_one(self, parameters: dict[str, nn.Parameter], name: str, tensor: torch.Tensor) -> None:
        """Load a tensor of a checkpoint."""
        found = _EXPERT.fullmatch(name)
        if not found:
            super().load_one(parameters, name, tensor)
            return
        experts, number, part = found.groups()
        joined = parameters[f"{experts}.{'down' if part == 'down' else 'gate_up'}.weight"]
        load_weight(joined, tensor, expert_id=int(number), shard_id=part)


class Qwen2MoeForCausalLM(MoeForCausalLM):
    """Qwen2 with experts, and its head."""

    layer_class = Qwen2MoeDecoderLayer
