"""InternLM: Llama with biases in its attention, and words of its own for dynamic positions."""

from __future__ import annotations

from typing import Any

import torch

from lmdeploy.pytorch.models.internlm2 import InternLM2Attention
from lmdeploy.pytorch.models.llama import LlamaDecoderLayer, LlamaForCausalLM
from lmdeploy.pytorch.step_context import StepContextManager


class InternLMDecoderLayer(LlamaDecoderLayer):
    """A layer."""

    attention_class = InternLM2Attention


class InternLMForCausalLM(LlamaForCausalLM):
    """InternLM, with its head."""

    layer_class = InternLMDecoderLayer

    def __init__(
        self,
        config: Any,
        ctx_mgr: StepContextManager,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        rotary = getattr(config, "rotary", None) or {}
        config.num_key_value_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        rope = {"rope_type": "default", "rope_theta": rotary.get("base") or getattr(config, "rope_theta", 10000.0)}
        if rotary.get("type") == "dynamic":
            rope |= {"rope_type": "dynamic", "factor": rotary.get("scaling_factor", 1.0)}
        config.rope_parameters = rope
        super().__init__(config, ctx_mgr, dtype, device)
