"""Qwen2: Llama with a bias on the way to the heads."""

from __future__ import annotations

from typing import Any

from lmdeploy.pytorch.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM


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
