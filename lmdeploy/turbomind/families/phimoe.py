"""Phi-3.5-MoE: LayerNorm, biases, and experts chosen by SparseMixer."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, refuse_unless
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.mixtral import EXPERTS, moe_spec
from lmdeploy.turbomind.families.rope import rope_of
from lmdeploy.turbomind.spec import ModelSpec, NormSpec, OutputSpec, RopeSpec, RouterSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    refuse_unless(config.num_experts_per_tok == 2, f"SparseMixer of {config.num_experts_per_tok} experts")
    bias = config.attention_bias
    return decoder_spec(
        config,
        checkpoint,
        norm=NormSpec(config.rms_norm_eps, kind="layer", bias=True),
        attention=attention_spec(config, qkv_bias=bias, o_bias=bias),
        ropes=(_rope(config),),
        moe=moe_spec(config, RouterSpec("sparsemixer", jitter=config.router_jitter_noise)),
        output=OutputSpec(bias=config.lm_head_bias),
    )


def _rope(config: Any) -> RopeSpec:
    """Return longrope with its factor of cos and sin as the config names it, or plain rotation."""
    parameters = config.rope_parameters
    if parameters["rope_type"] == "default":
        return rope_of(config)
    short, long = parameters["short_mscale"], parameters["long_mscale"]
    refuse_unless(short == long, f"short_mscale {short} unlike long_mscale {long}")
    return dataclasses.replace(rope_of(config), attention_scaling=float(short))


FAMILY = Family(
    ("PhimoeForCausalLM", "PhiMoEForCausalLM"),  # the second as it is published
    spec,
    Layout(experts=EXPERTS.tensors).tensors,
)
