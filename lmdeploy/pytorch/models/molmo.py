"""The text part of Molmo 7B-D and 72B: Qwen2 in OLMo's names."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM
from lmdeploy.pytorch.step_context import StepContextManager
from lmdeploy.pytorch.weight_loader.model_weight_loader import load_weight

# From a tensor's name to Llama's.
_NAMES = (
    (r"^model\.transformer\.wte\.embedding$", "model.embed_tokens.weight"),
    (r"^model\.transformer\.ff_out\.", "lm_head."),
    (r"^model\.transformer\.ln_f\.", "model.norm."),
    (r"^model\.transformer\.blocks\.", "model.layers."),
    (r"\.att_proj\.", ".self_attn.qkv_proj."),
    (r"\.attn_out\.", ".self_attn.o_proj."),
    (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.ff_norm\.", ".post_attention_layernorm."),
    (r"\.ff_proj\.", ".mlp.gate_up_proj."),
    (r"\.ff_out\.", ".mlp.down_proj."),
)


class MolmoAttention(LlamaAttention):
    """The attention of a layer."""

    def biases(self, config: Any) -> tuple[bool, bool]:
        """Return whether the projections to heads, and from them, have a bias."""
        return bool(config.qkv_bias), False


class MolmoDecoderLayer(LlamaDecoderLayer):
    """A layer."""

    attention_class = MolmoAttention


class MolmoForCausalLM(LlamaForCausalLM):
    """The text part of Molmo, with its head."""

    layer_class = MolmoDecoderLayer

    def __init__(
        self,
        config: Any,
        ctx_mgr: StepContextManager,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        others = [name for name in ("norm_after", "attention_layer_norm") if getattr(config, name, False)]
        if others:
            raise UnsupportedModelError(f"Molmo 7B-O ({', '.join(others)}) is run by TurbomindEngineConfig alone")
        config.vocab_size = getattr(config, "embedding_size", None) or config.vocab_size
        config.intermediate_size //= 2  # of gate and up together
        config.rms_norm_eps = config.layer_norm_eps
        config.num_key_value_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        super().__init__(config, ctx_mgr, dtype, device)

    def load_one(self, parameters: dict[str, nn.Parameter], name: str, tensor: torch.Tensor) -> None:
        """Load a tensor of a checkpoint."""
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        if ".gate_up_proj." in name:
            for shard, part in zip((1, 0), tensor.chunk(2), strict=True):  # up comes first
                load_weight(parameters[name], part, shard_id=shard)
        else:
            super().load_one(parameters, name, tensor)
