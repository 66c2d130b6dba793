"""Qwen1.5, Qwen2, Qwen2.5: Llama's tensors with biases of q, k and v."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import ModelSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    return decoder_spec(config, checkpoint, attention=attention_spec(config, qkv_bias=True))


FAMILY = Family(("Qwen2ForCausalLM",), spec, Layout().tensors)
