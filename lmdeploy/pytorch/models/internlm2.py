"""InternLM2: Llama under names of its own, queries, keys and values in one tensor, key head by key head.

That of Mono-InternVL has a further MLP for rows of images.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from lmdeploy.pytorch.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM
from lmdeploy.pytorch.nn.image_rows import give_own_weights
from lmdeploy.pytorch.weight_loader.model_weight_loader import load_weight

# From a tensor's name to Llama's.
_NAMES = (
    (r"\.tok_embeddings\.", ".embed_tokens."),
    (r"^output\.", "lm_head."),
    (r"\.attention\.wqkv\.", ".self_attn.qkv_proj."),
    (r"\.attention\.wo\.", ".self_attn.o_proj."),
    (r"\.attention_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.feed_forward\.w1\.", ".mlp.gate_proj."),
    (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
    (r"\.feed_forward\.w2\.", ".mlp.down_proj."),
    (r"\.feed_forward_ve\.w1\.", ".mlp.gate_proj.for_images.linear."),
    (r"\.feed_forward_ve\.w3\.", ".mlp.up_proj.for_images.linear."),
    (r"\.feed_forward_ve\.w2\.", ".mlp.down_proj.for_images.linear."),
)


def llama_name(name: str) -> str:
    """Return what Llama calls a tensor, or the beginning of its name up to a dot."""
    for pattern, replacement in _NAMES:
        name = re.sub(pattern, replacement, name)
    return name


class InternLM2Attention(LlamaAttention):
    """The attention of a layer."""

    def biases(self, config: Any) -> tuple[bool, bool]:
        """Return whether the projections to heads, and from them, have a bias."""
        bias = bool(getattr(config, "bias", False))
        return bias, bias


class InternLM2DecoderLayer(LlamaDecoderLayer):
    """A layer."""

    attention_class = InternLM2Attention


class InternLM2ForCausalLM(LlamaForCausalLM):
    """InternLM2, with its head."""

    layer_class = InternLM2DecoderLayer

    def load_one(self, parameters: dict[str, nn.Parameter], name: str, tensor: torch.Tensor) -> None:
        """Load a tensor of a checkpoint."""
        name = llama_name(name)
        if name == "lm_head.weight" and self.config.tie_word_embeddings:
            return
        if ".qkv_proj." not in name:
            super().load_one(parameters, name, tensor)
            return
        joined = parameters[name]
        layer = self.get_submodule(name.rpartition(".")[0])
        for shard_id, part in zip("qkv", layer.weight_spliter(tensor, layout="hgd"), strict=True):
            load_weight(joined, part, shard_id=shard_id)


class InternLM2VEDecoderLayer(InternLM2DecoderLayer):
    """A layer of Mono-InternVL."""

    def build_mlp(
        self, config: Any, layer_idx: int, dtype: torch.dtype | None, device: torch.device | str | None
    ) -> nn.Module:
        """Return the MLP of the layer, with that for rows of images."""
        text, images = (super(InternLM2VEDecoderLayer, self).build_mlp(config, layer_idx, dtype, device) for _ in "ti")
        give_own_weights(text, images)
        return text


class InternLM2VEForCausalLM(InternLM2ForCausalLM):
    """The text part of Mono-InternVL, with its head."""

    layer_class = InternLM2VEDecoderLayer
