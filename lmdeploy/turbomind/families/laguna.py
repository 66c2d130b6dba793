"""Laguna: attention gated by softplus, head counts that differ by layer, experts by a sigmoid router."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family, attention_spec, decoder_spec, reject_unless
from lmdeploy.turbomind.families.deepseek import moe_spec
from lmdeploy.turbomind.families.experts import ExpertNames
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.rope import ropes_by_kind
from lmdeploy.turbomind.spec import ModelSpec, RouterSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    reject_unless(not config.attention_bias, "attention_bias with gated attention")
    reject_unless(config.gating in {True, "per-head", "per-element"}, f"gating {config.gating!r}")
    reject_unless(not config.moe_router_logit_softcapping, "moe_router_logit_softcapping")
    gated = attention_spec(
        config,
        qk_norm="head",
        has_output_gate=True,
        gates_by_softplus=True,
        gates_heads=config.gating != "per-element",
    )
    heads = config.num_attention_heads_per_layer
    kinds = list(dict.fromkeys((config.num_attention_heads, *heads)))
    router = RouterSpec("sigmoid", normalizes=True, scale=config.moe_routed_scaling_factor, has_correction=True)
    shared = config.shared_expert_intermediate_size
    return decoder_spec(
        config,
        checkpoint,
        attention=gated,
        attentions=tuple(dataclasses.replace(gated, num_heads=count) for count in kinds[1:]),
        layer_attentions=tuple(map(kinds.index, heads)),
        moe=dataclasses.replace(moe_spec(config, router), shared_intermediate_size=shared),
        **ropes_by_kind(config),
    )


NAMES = ExpertNames(correction="mlp.experts.e_score_correction_bias", shared="mlp.shared_expert.{}_proj")
LAYOUT = Layout(output_gate="self_attn.g_proj", experts=NAMES.tensors)
FAMILY = Family(("LagunaForCausalLM",), spec, LAYOUT.tensors)
