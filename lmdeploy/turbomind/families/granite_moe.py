"""Granite 3 MoE: Granite, with experts in one tensor a layer; of some, a dense MLP that every token goes to."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families import granite
from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.experts import moe_of
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.mixtral import moe_spec
from lmdeploy.turbomind.manifest import Expression, Load, reshape, rows_of
from lmdeploy.turbomind.spec import ModelSpec, RouterSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    config.mlp_bias = False
    moe = moe_spec(config, RouterSpec(normalizes=True))
    shared = getattr(config, "shared_intermediate_size", 0)
    return dataclasses.replace(
        granite.spec(config, checkpoint), moe=dataclasses.replace(moe, shared_intermediate_size=shared)
    )


def experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer."""
    moe, hidden = moe_of(spec), spec.hidden_size
    count, size = moe.num_experts, moe.intermediate_size
    stack = prefix + "block_sparse_moe."
    gate_up = Load(stack + "input_linear.weight", (count, 2 * size, hidden))
    down = Load(stack + "output_linear.weight", (count, hidden, size))
    engine: dict[str, Expression] = {"moe.router.weight": Load(stack + "router.layer.weight", (count, hidden))}
    for e in range(count):
        engine[f"moe.experts.{e}.gate_up.weight"] = reshape(rows_of(gate_up, e, e + 1), 2 * size, hidden)
        engine[f"moe.experts.{e}.down.weight"] = reshape(rows_of(down, e, e + 1), hidden, size)
    if shared := moe.shared_intermediate_size:
        engine["moe.shared.gate_up.weight"] = Load(f"{prefix}shared_mlp.input_linear.weight", (2 * shared, hidden))
        engine["moe.shared.down.weight"] = Load(f"{prefix}shared_mlp.output_linear.weight", (hidden, shared))
    return engine


FAMILY = Family(("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"), spec, Layout(experts=experts).tensors)
