"""The text part of CogVLM and CogVLM2: Llama with separate weights for image tokens in every linear layer."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from lmdeploy.pytorch.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP
from lmdeploy.pytorch.nn.image_rows import give_own_weights

# From a tensor's name to Llama's.
_NAMES = (
    (r"\.language_expert_query_key_value\.", ".qkv_proj."),
    (r"\.language_expert_dense\.", ".o_proj."),
    (r"\.language_mlp\.", "."),
    (r"\.vision_expert_query_key_value\.", ".qkv_proj.for_images.linear."),
    (r"\.vision_expert_dense\.", ".o_proj.for_images.linear."),
    (r"\.vision_mlp\.(\w+)\.", r".\1.for_images.linear."),
)


class CogVLMImageAttention(LlamaAttention):
    """The projections of a layer for image tokens."""

    def biases(self, config: Any) -> tuple[bool, bool]:
        """Return whether the projections to heads, and from them, have a bias; of CogVLM2 the first do."""
        return bool(getattr(config, "num_multi_query_heads", None)), False


class CogVLMDecoderLayer(LlamaDecoderLayer):
    """A layer."""

    def __init__(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        super().__init__(config, layer_idx, dtype=dtype, device=device)
        give_own_weights(self.self_attn, CogVLMImageAttention(config, layer_idx, dtype=dtype, device=device))
        give_own_weights(self.mlp, LlamaMLP(config, dtype=dtype, device=device))


class CogVLMForCausalLM(LlamaForCausalLM):
    """The text part, with its head."""

    layer_class = CogVLMDecoderLayer

    def load_one(self, parameters: dict[str, nn.Parameter], name: str, tensor: torch.Tensor) -> None:
        """Load a tensor of a checkpoint."""
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        super().load_one(parameters, name, tensor)
