"""Qwen3: queries and keys are normed by head."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    bias = config.attention_bias
    attention = attention_spec(config, qkv_bias=bias, o_bias=bias, qk_norm="head")
    return decoder_spec(config, checkpoint, attention=attention)


FAMILY = Family(("Qwen3ForCausalLM",), spec, Layout().tensors)
