"""Seed-OSS: Llama whose q, k and v have biases, and o its own switch for one."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    return decoder_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qkv_bias=config.attention_bias, o_bias=config.attention_out_bias),
        mlp=MlpSpec(activation_of(config.hidden_act), bias=config.mlp_bias),
    )


FAMILY = Family(("SeedOssForCausalLM",), spec, Layout().tensors)
