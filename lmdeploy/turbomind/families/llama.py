"""Llama 1 to 3.3, Code Llama, Yi, SmolLM2, and everything else that is published as Llama."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec


def spec(config: Any, checkpoint: Checkpoint, **fields: Any) -> ModelSpec:
    """Return the spec, with ``fields`` in place of what the config gives."""
    return decoder_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qkv_bias=config.attention_bias, o_bias=config.attention_bias),
        mlp=MlpSpec(activation_of(config.hidden_act), bias=config.mlp_bias),
        **fields,
    )


FAMILY = Family(("LlamaForCausalLM",), spec, Layout().tensors)
