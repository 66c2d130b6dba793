"""Mistral Small 4: latent attention whose queries grow with their position, and experts in one tensor a layer."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.deepseek import latent_spec
from lmdeploy.turbomind.families.experts import ExpertNames, moe_of
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.ministral3 import temperature
from lmdeploy.turbomind.manifest import Expression, Load, reshape, rows_of
from lmdeploy.turbomind.spec import ModelSpec, RouterSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    router = RouterSpec(
        normalizes=config.norm_topk_prob,
        scale=config.routed_scaling_factor,
        groups=config.n_group,
        top_groups=config.topk_group,
        group_score="top2",
    )
    plain = latent_spec(config, checkpoint, router, is_interleaved=config.rope_interleave)
    return dataclasses.replace(plain, attention=dataclasses.replace(plain.attention, **temperature(config)))


def experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer."""
    moe, hidden = moe_of(spec), spec.hidden_size
    count, size = moe.num_experts, moe.intermediate_size
    gate_up = Load(f"{prefix}mlp.experts.gate_up_proj", (count, 2 * size, hidden))
    down = Load(f"{prefix}mlp.experts.down_proj", (count, hidden, size))
    engine = {name: whole for name, whole in ExpertNames().tensors(spec, prefix).items() if ".experts." not in name}
    for e in range(count):
        engine[f"moe.experts.{e}.gate_up.weight"] = reshape(rows_of(gate_up, e, e + 1), 2 * size, hidden)
        engine[f"moe.experts.{e}.down.weight"] = reshape(rows_of(down, e, e + 1), hidden, size)
    return engine


FAMILY = Family(("Mistral4ForCausalLM",), spec, Layout(experts=experts).tensors)
