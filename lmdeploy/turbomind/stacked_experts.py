"""Stacked expert tensors, as Qwen3.5 with experts is published.

A family describes matrices ``X.experts.E.gate_proj.weight``, ``up_proj`` and ``down_proj`` of each expert. Where a
checkpoint has ``X.experts.gate_up_proj [experts, 2 out, in]`` and ``X.experts.down_proj [experts, out, in]`` instead,
:func:`with_stacks` reads them out of these.

A stack of one byte a code, as Qwen3-VL with experts is published in fp8, has scales alongside it, in
``X.experts.gate_up_proj_scale_inv``: one for each block of rows and columns of an expert, or one for each expert,
``[experts, 1, 1]``. A matrix that is taken out of it becomes codes and scales that are taken out alike
(:func:`scaled_part`).
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.manifest import (
    Expression,
    Load,
    Permute,
    Reshape,
    Scaled,
    Slice,
    over_loads,
    permute,
    reshape,
    rows_of,
    transpose,
    walk,
)
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex

QUANTIZED_DTYPES = ("I8", "F8_E4M3")
NUMBERS = ("F32", "BF16", "F16")
POWERS = ("U8", "F8_E8M0")  # of scales that are powers of two, in MXFP8
MX_BLOCK = (1, 32)  # outputs and inputs that share one
_STACK = re.compile(r"(.+\.experts)\.(gate_up|down)_proj")
_TRANSPOSED = ("Qwen3VLMoeForConditionalGeneration", "Qwen3VLMoeTextModel")  # whose matrices are [in, out]
_MATRIX = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def with_stacks(tensors: Mapping[str, Expression], index: SafetensorsIndex) -> dict[str, Expression]:
    """Return the engine tensors with parts of stacks in place of the matrices that the checkpoint stores so."""
    if not any(name.endswith(".experts.gate_up_proj") for name in index.tensors):
        return dict(tensors)
    return {name: over_loads(expression, lambda load: _part(load, index)) for name, expression in tensors.items()}


def _part(matrix: Load, index: SafetensorsIndex) -> Expression:
    """Return a matrix out of a stack, or itself; stacks that lie the other way are turned, as in ``transformers``."""
    stored = index.tensors[matrix.name].shape if matrix.name in index.tensors else ()
    if len(stored) == 3 and stored != matrix.shape == (stored[0], stored[2], stored[1]):
        return permute(dataclasses.replace(matrix, shape=stored), 0, 2, 1)
    found = _MATRIX.fullmatch(matrix.name)
    stack = f"{found[1]}.{'down' if found[3] == 'down' else 'gate_up'}_proj" if found else ""
    if found is None or stack not in index.tensors:
        return matrix
    expert, (rows, inputs) = int(found[2]), matrix.shape
    first = rows if found[3] == "up" else 0
    whole = Load(stack, (index.tensors[stack].shape[0], rows if found[3] == "down" else 2 * rows, inputs))
    one = rows_of(whole, expert, expert + 1)
    return reshape(one if found[3] == "down" else rows_of(one, first, first + rows, dim=1), rows, inputs)


def quantized_stack(expression: Expression, index: SafetensorsIndex) -> Load | None:
    """Return the stack of codes that a matrix is taken out of; None if it is of none."""
    if isinstance(expression, Load) or len(expression.shape) != 2:
        return None
    loads = [part for part in walk(expression) if isinstance(part, Load)]
    if len(loads) != 1 or len(loads[0].shape) != 3:
        return None
    found = index.tensors.get(loads[0].name)
    return loads[0] if found is not None and found.dtype in QUANTIZED_DTYPES else None


def scaled_part(
    matrix: Expression, stack: Load, scales: str, block: tuple[int, int] | None, index: SafetensorsIndex
) -> Scaled:
    """Return a matrix of a stack as codes and scales.

    Raises `UnsupportedModelError` if the matrix begins within a block. ``matrix``: how it is taken out of the stack.
    ``stack``: the stack. ``scales``: the tensor with its scales. ``block``: rows and columns that share a scale; None:
    an expert has one.
    """
    experts, rows, columns = stack.shape
    found = index.tensors.get(scales)
    if found is not None and found.dtype in POWERS:
        block = MX_BLOCK
    elif block is None or (found is not None and found.shape == (experts, 1, 1)):
        block = rows, columns
    sizes = (1, min(block[0], rows), min(block[1], columns))

    def scales_of(expression: Expression) -> Expression:
        if isinstance(expression, Load):
            shape = (experts, *(-(-count // size) for count, size in zip((rows, columns), sizes[1:], strict=True)))
            return Load(scales, shape, NUMBERS + POWERS)
        found = scales_of(expression.args[0])
        match expression:
            case Slice(dim=dim, begin=begin, end=end):
                if begin % sizes[dim] and found.shape[dim] > 1:
                    raise UnsupportedModelError(
                        f"tensor {stack.name}: its blocks of {sizes[1:]} are across gate and up"
                    )
                return rows_of(found, begin // sizes[dim], -(-end // sizes[dim]), dim=dim)
            case Reshape():
                return reshape(found, *found.shape[1:])
            case Permute(dims=dims):
                return permute(found, *dims)
        raise UnsupportedModelError(f"tensor {stack.name}: its codes are not read in this layout")

    is_transposed = any(isinstance(part, Permute) for part in walk(matrix))
    of_matrix = (sizes[2], sizes[1]) if is_transposed else (sizes[1], sizes[2])
    quantized = over_loads(matrix, lambda load: dataclasses.replace(load, dtypes=QUANTIZED_DTYPES))
    return Scaled(of_matrix, (quantized, scales_of(matrix)))


def parts_of_stacks(raw: Mapping[str, Any], index: SafetensorsIndex) -> dict[str, Expression]:
    """Return ``P.experts.E.gate_proj``, ``up_proj`` and ``down_proj`` of the stacks of codes of a checkpoint."""
    is_transposed = any(name in _TRANSPOSED for name in raw.get("architectures") or ())
    return {
        name: transpose(matrix) if is_transposed else matrix
        for stack, info in index.tensors.items()
        if info.dtype in QUANTIZED_DTYPES and len(info.shape) == 3 and (found := _STACK.fullmatch(stack))
        for expert in range(info.shape[0])
        for name, matrix in _matrices(found, Load(stack, info.shape), expert, 2 if is_transposed else 1)
    }


def _matrices(found: "re.Match[str]", stack: Load, expert: int, axis: int) -> Iterator[tuple[str, Expression]]:
    """Yield an expert's matrices out of a stack whose outputs are along ``axis``."""
    rows = rows_of(stack, expert, expert + 1)
    half = stack.shape[axis] // 2
    parts = {"gate": (0, half), "up": (half, 2 * half)} if found[2] == "gate_up" else {"down": (0, stack.shape[axis])}
    for part, (begin, end) in parts.items():
        taken = rows if part == "down" else rows_of(rows, begin, end, dim=axis)
        yield f"{found[1]}.{expert}.{part}_proj", reshape(taken, *taken.shape[1:])


def stack_of(layer: str) -> tuple[str, str] | None:
    """Return the stack that a layer of `parts_of_stacks` is of, and its own end of the name; None for other names."""
    found = re.fullmatch(r"(.+\.experts)(\.\d+\.(gate|up|down)_proj)", layer)
    return (f"{found[1]}.{'down' if found[3] == 'down' else 'gate_up'}_proj", found[2]) if found else None
