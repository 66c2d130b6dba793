"""ERNIE 4.5, dense: Llama whose pairs of dimensions that rotate are neighbours, with biases or without."""

from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, activation_of, attention_spec, decoder_spec
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.spec import MlpSpec, ModelSpec


def spec(config: Any, checkpoint: Checkpoint, **fields: Any) -> ModelSpec:
    """Return the spec, with further fields."""
    bias = config.use_bias
    return decoder_spec(
        config,
        checkpoint,
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias),
        mlp=MlpSpec(activation_of(config.hidden_act), bias=bias),
        ropes=(rope_of(config, is_interleaved=True),),
        **fields,
    )


FAMILY = Family(("Ernie4_5ForCausalLM",), spec, Layout().tensors)
