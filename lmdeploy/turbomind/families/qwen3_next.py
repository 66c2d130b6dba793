"""Qwen3-Next: gated delta networks, and gated attention in every fourth layer; experts with a gated shared one."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec
from lmdeploy.turbomind.families.experts import ExpertNames
from lmdeploy.turbomind.families.gated_delta import gated_delta_fields, grouped_tensors
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.qwen2_moe import moe_spec
from lmdeploy.turbomind.spec import ModelSpec, NormSpec


def dense_spec(config: Any, checkpoint: Checkpoint, **fields: Any) -> ModelSpec:
    """Return the spec without experts."""
    bias = config.attention_bias
    attention = attention_spec(config, qkv_bias=bias, o_bias=bias, qk_norm="head", has_output_gate=True)
    norm = NormSpec(config.rms_norm_eps, offset=1.0)
    return decoder_spec(config, checkpoint, attention=attention, norm=norm, **(gated_delta_fields(config) | fields))


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    moe = dataclasses.replace(
        moe_spec(config), shared_intermediate_size=config.shared_expert_intermediate_size, has_shared_gate=True
    )
    return dense_spec(config, checkpoint, moe=moe)


LAYOUT = Layout(experts=ExpertNames(shared="mlp.shared_expert.{}_proj").tensors, recurrence=grouped_tensors)
FAMILY = Family(("Qwen3NextForCausalLM",), spec, LAYOUT.tensors)
