"""The text part of Qwen3-VL with experts: Qwen3-MoE, whose experts are in one tensor a layer, laid out as [in, out]."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.families import qwen3
from lmdeploy.turbomind.families.common import Checkpoint, Family
from lmdeploy.turbomind.families.experts import moe_of
from lmdeploy.turbomind.families.layout import Layout
from lmdeploy.turbomind.families.qwen2_moe import moe_spec
from lmdeploy.turbomind.manifest import Expression, Load, reshape, rows_of, transpose
from lmdeploy.turbomind.spec import ModelSpec


def spec(config: Any, checkpoint: Checkpoint) -> ModelSpec:
    """Return the spec."""
    return dataclasses.replace(qwen3.spec(config, checkpoint), moe=moe_spec(config, normalizes=True))


def experts(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of the experts of a layer."""
    moe, hidden = moe_of(spec), spec.hidden_size
    count, size = moe.num_experts, moe.intermediate_size
    gate_up = Load(f"{prefix}mlp.experts.gate_up_proj", (count, hidden, 2 * size))
    down = Load(f"{prefix}mlp.experts.down_proj", (count, size, hidden))
    engine: dict[str, Expression] = {"moe.router.weight": Load(f"{prefix}mlp.gate.weight", (count, hidden))}
    for e in range(count):
        engine[f"moe.experts.{e}.gate_up.weight"] = transpose(reshape(rows_of(gate_up, e, e + 1), hidden, 2 * size))
        engine[f"moe.experts.{e}.down.weight"] = transpose(reshape(rows_of(down, e, e + 1), size, hidden))
    return engine


FAMILY = Family(("Qwen3VLMoeTextModel",), spec, Layout(experts=experts).tensors)
