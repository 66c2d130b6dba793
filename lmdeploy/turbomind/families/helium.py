"""Helium: Llama whose pairs of dimensions that rotate are neighbours."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    return decoder_spec(
        config,
        checkpoint,
        mlp=MlpSpec(activation_of(config.hidden_act), bias=config.mlp_bias),
        attention=attention_spec(config, qkv_bias=config.attention_bias),
        ropes=(rope_of(config, is_interleaved=True),),
    )


FAMILY = Family(("HeliumForCausalLM",), spec, Layout().tensors)
