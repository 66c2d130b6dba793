"""Checkpoints that store the experts of a layer as two stacks, as Qwen3.5 with experts is published.

A family describes matrices ``X.experts.E.gate_proj.weight``, ``up_proj`` and ``down_proj`` of each expert. Where a
checkpoint has ``X.experts.gate_up_proj [experts, 2 out, in]`` and ``X.experts.down_proj [experts, out, in]`` instead,
:func:`with_stacks` reads them out of these.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from lmdeploy.turbomind.manifest import Expression, Load, reshape, rows_of
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex

_MATRIX = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def with_stacks(tensors: Mapping[str, Expression], index: SafetensorsIndex) -> dict[str, Expression]:
    """Return the engine tensors with parts of stacks in place of the matrices that the checkpoint stores so."""
    if not any(name.endswith(".experts.gate_up_proj") for name in index.tensors):
        return dict(tensors)

    def replaced(expression: Expression) -> Expression:
        if isinstance(expression, Load):
            return _part(expression, index)
        args: Any = tuple(map(replaced, expression.args))
        return dataclasses.replace(expression, args=args)

    return {name: replaced(expression) for name, expression in tensors.items()}


def _part(matrix: Load, index: SafetensorsIndex) -> Expression:
    """Return a matrix out of a stack, or itself."""
    found = _MATRIX.fullmatch(matrix.name)
    stack = f"{found[1]}.{'down' if found[3] == 'down' else 'gate_up'}_proj" if found else ""
    if found is None or stack not in index.tensors:
        return matrix
    expert, (rows, inputs) = int(found[2]), matrix.shape
    first = rows if found[3] == "up" else 0
    whole = Load(stack, (index.tensors[stack].shape[0], rows if found[3] == "down" else 2 * rows, inputs))
    own = rows_of(whole, expert, expert + 1)
    return reshape(own if found[3] == "down" else rows_of(own, first, first + rows, dim=1), rows, inputs)
