"""Tensor names of gated delta networks (Qwen3-Next, Qwen3.5)."""

import itertools
from typing import Any

from lmdeploy.turbomind.manifest import Expression, Load, concat, reshape, rows_of
from lmdeploy.turbomind.spec import ModelSpec, RecurrenceSpec

MIXERS = {"linear_attention": "recurrence", "full_attention": "attention", "indexed_attention": "attention"}
"""By the names in ``layer_types``."""


def recurrence_of(spec: ModelSpec) -> RecurrenceSpec:
    """Return the recurrence of a spec that has one."""
    if spec.recurrence is None:
        raise ValueError(f"{spec.architecture} has no recurrence")
    return spec.recurrence


def gated_delta_fields(config: Any) -> dict[str, Any]:
    """Return the fields of a spec that say which layers are gated delta networks, and of what sizes."""
    return {
        "layer_mixers": tuple(MIXERS.get(kind, kind) for kind in config.layer_types),
        "recurrence": RecurrenceSpec(
            "gated_delta",
            num_heads=config.linear_num_value_heads,
            num_key_heads=config.linear_num_key_heads,
            key_dim=config.linear_key_head_dim,
            value_dim=config.linear_value_head_dim,
            conv_kernel=config.linear_conv_kernel_dim,
        ),
    }


def divided_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of a layer with a matrix each for queries, keys, values, their gate and the decays."""
    recurrence, hidden = recurrence_of(spec), spec.hidden_size
    keys, values = recurrence.num_key_heads * recurrence.key_dim, recurrence.num_heads * recurrence.value_dim
    prefix += "linear_attn."
    inputs = concat(
        Load(f"{prefix}in_proj_qkv.weight", (2 * keys + values, hidden)),
        Load(f"{prefix}in_proj_z.weight", (values, hidden)),
    )
    gates = concat(*(Load(f"{prefix}in_proj_{name}.weight", (recurrence.num_heads, hidden)) for name in "ab"))
    return {"recurrence.in.weight": inputs, "recurrence.gates.weight": gates} | _rest(spec, prefix)


def grouped_tensors(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    """Return the engine tensors of a layer whose matrices have, for each key head, the rows that go with it."""
    recurrence, hidden = recurrence_of(spec), spec.hidden_size
    group = recurrence.num_heads // recurrence.num_key_heads
    prefix += "linear_attn."
    ends = [0, recurrence.key_dim, 2 * recurrence.key_dim]
    ends += [ends[-1] + group * recurrence.value_dim, ends[-1] + 2 * group * recurrence.value_dim]
    inputs = Load(f"{prefix}in_proj_qkvz.weight", (recurrence.num_key_heads * ends[-1], hidden))
    gates = Load(f"{prefix}in_proj_ba.weight", (2 * recurrence.num_heads, hidden))
    return {
        "recurrence.in.weight": _ungrouped(inputs, recurrence.num_key_heads, list(itertools.pairwise(ends))),
        "recurrence.gates.weight": _ungrouped(gates, recurrence.num_key_heads, [(group, 2 * group), (0, group)]),
    } | _rest(spec, prefix)


def _ungrouped(whole: Expression, groups: int, parts: list[tuple[int, int]]) -> Expression:
    """Return the rows of all groups, part by part."""
    rows, inputs = whole.shape
    grouped = reshape(whole, groups, rows // groups, inputs)
    return concat(
        *(reshape(rows_of(grouped, begin, end, dim=1), groups * (end - begin), inputs) for begin, end in parts)
    )


def _rest(spec: ModelSpec, prefix: str) -> dict[str, Expression]:
    recurrence = recurrence_of(spec)
    values = recurrence.num_heads * recurrence.value_dim
    channels = 2 * recurrence.num_key_heads * recurrence.key_dim + values
    convolution = Load(f"{prefix}conv1d.weight", (channels, 1, recurrence.conv_kernel))
    return {
        "recurrence.conv": reshape(convolution, channels, recurrence.conv_kernel),
        "recurrence.a_log": Load(f"{prefix}A_log", (recurrence.num_heads,)),
        "recurrence.dt_bias": Load(f"{prefix}dt_bias", (recurrence.num_heads,)),
        "recurrence.norm.weight": Load(f"{prefix}norm.weight", (recurrence.value_dim,)),
        "recurrence.out.weight": Load(f"{prefix}out_proj.weight", (spec.hidden_size, values)),
    }
