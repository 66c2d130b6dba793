"""Phi-1, Phi-1.5 and Phi-2: parallel halves that share a LayerNorm, a plain MLP, biases everywhere."""

from typing import Any

from lmdeploy.turbomind.families.common import (
    Checkpoint,
    Family,
    activation_of,
    attention_spec,
    decoder_spec,
    refuse_unless,
)
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.spec import BlockSpec, MlpSpec, ModelSpec, NormSpec, OutputSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    refuse_unless(not config.qk_layernorm, "qk_layernorm, with biases,")
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.layer_norm_eps, kind="layer", bias=True),
        mlp=MlpSpec(activation_of(config.hidden_act), is_gated=False, bias=True),
        block=BlockSpec(is_parallel=True, shares_norm=True),
        attention=attention_spec(config, qkv_bias=True, o_bias=True),
        output=OutputSpec(bias=True),
    )


LAYOUT = Layout(final_norm="model.final_layernorm", o="self_attn.dense", up="mlp.fc1", down="mlp.fc2")
FAMILY = Family(("PhiForCausalLM",), spec, LAYOUT.tensors)
