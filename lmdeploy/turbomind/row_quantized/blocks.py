"""Weights quantized in blocks by bitsandbytes and by MLX.

* ``bitsandbytes`` (Dettmers et al., 2022, arXiv 2208.07339, and 2023, arXiv 2305.14314): 4 bits, NF4 or FP4, with
  ``X.weight.absmax``, ``X.weight.quant_map`` and, where scales are quantized once more, ``X.weight.nested_absmax`` and
  ``X.weight.nested_quant_map``; 8 bits with ``X.SCB``, the largest magnitude of each output.
* ``mlx`` (``mlx.core.quantize``, mode ``affine``): ``X.weight`` U32 with ``X.scales`` and ``X.biases``.

Which layers are stored so, and in how many bits, their tensors say.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.manifest import Affine, Expression, Load, Scaled, Table, over_loads
from lmdeploy.turbomind.row_quantized.schemes import NUMBERS
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex

METHODS = ("bitsandbytes", "mlx")
_STATE = ".weight.quant_state.bitsandbytes__"
_TYPES = ("nf4", "fp4")
_LARGEST_INT8 = 127.0


def with_block_quantized(
    tensors: Mapping[str, Expression], config: Mapping[str, Any], index: SafetensorsIndex
) -> dict[str, Expression]:
    """Return the engine tensors with the codes in place of each weight that the checkpoint stores in blocks.

    Raises `UnsupportedModelError` for another mode of MLX.
    """
    given = config.get("quantization_config")
    if not isinstance(given, dict) or given.get("quant_method") not in METHODS:
        return dict(tensors)
    method = given["quant_method"]
    if method == "mlx" and (mode := given.get("mode") or "affine") != "affine":
        raise UnsupportedModelError(f"mlx weights of mode {mode!r} are not supported; supported: affine")
    states = _quant_states(index) if method == "bitsandbytes" else {}

    def stored(load: Load) -> Expression:
        layer = load.name.removesuffix(".weight")
        if layer == load.name or len(load.shape) != 2:
            return load
        if method == "mlx":
            return _affine(layer, load.shape, index) or load
        return _table(layer, load.shape, states) or _int8(layer, load, index) or load

    return {name: over_loads(expression, stored) for name, expression in tensors.items()}


def _affine(layer: str, shape: tuple[int, ...], index: SafetensorsIndex) -> Affine | None:
    scales, quantized = index.tensors.get(f"{layer}.scales"), index.tensors.get(f"{layer}.weight")
    if (
        scales is None
        or quantized is None
        or quantized.dtype != "U32"
        or len(scales.shape) != 2
        or len(quantized.shape) != 2
    ):
        return None
    out_features, in_features = shape
    groups, words = scales.shape[1], quantized.shape[1]
    bits, group = words * 32 // in_features, in_features // max(groups, 1)
    fits = words * 32 == bits * in_features and group * groups == in_features and group % 32 == 0 and 2 <= bits <= 8
    problem = f"{layer}: {words} words and {groups} scales a row are no affine codes of {in_features} inputs"
    numbers = (out_features, groups)
    return Affine(
        bits,
        group,
        shape,
        (
            Load(f"{layer}.weight", (out_features, words), ("U32",)),
            Load(f"{layer}.scales", numbers, NUMBERS),
            Load(f"{layer}.biases", numbers, NUMBERS),
        ),
        () if fits else (problem,),
    )


def _quant_states(index: SafetensorsIndex) -> dict[str, dict[str, Any]]:
    """Return the JSON that bitsandbytes stores with each layer of 4 bits, in a tensor of bytes."""
    names = [name for name in index.tensors if _STATE in name]
    return {name.partition(_STATE)[0]: _read_state(index.tensor(name).numpy().tobytes()) for name in names}


def _read_state(stored: bytes) -> dict[str, Any]:
    """Return the object in these bytes; empty where there is none."""
    try:
        state = json.loads(stored)
    except ValueError:
        return {}
    return state if isinstance(state, dict) else {}


def _table(layer: str, shape: tuple[int, ...], states: Mapping[str, Mapping[str, Any]]) -> Table | None:
    state = states.get(layer)
    if state is None:
        return None
    sizes = [state.get(name) for name in ("blocksize", "nested_blocksize")]
    block, outer = (size if type(size) is int and size >= 1 else 0 for size in sizes)
    count = shape[0] * shape[1]
    blocks = -(-count // max(block, 1))
    weight = f"{layer}.weight"
    args = [Load(weight, (-(-count // 2), 1), ("U8",)), Load(f"{weight}.quant_map", (16,), ("F32",))]
    if outer:
        args += [
            Load(f"{weight}.absmax", (blocks,), ("U8",)),
            Load(f"{weight}.nested_quant_map", (256,), ("F32",)),
            Load(f"{weight}.nested_absmax", (-(-blocks // outer),), ("F32",)),
        ]
    else:
        args.append(Load(f"{weight}.absmax", (blocks,), ("F32",)))
    problems, offset = [], state.get("nested_offset") or 0.0
    if not block or not isinstance(offset, int | float):
        problems.append(f"{layer}: blocksize must be a whole number >= 1 and nested_offset a number, got {state}")
    if state.get("quant_type") not in _TYPES:
        problems.append(f"{layer}: quant_type must be nf4 or fp4, got {state.get('quant_type')!r}")
    if state.get("shape") != list(shape):
        problems.append(f"{layer}: is of shape {state.get('shape')}, expected {list(shape)}")
    return Table(block, outer, offset, shape, tuple(args), tuple(problems))


def _int8(layer: str, weight: Load, index: SafetensorsIndex) -> Scaled | None:
    if f"{layer}.SCB" not in index.tensors:
        return None
    out_features, in_features = weight.shape
    quantized = dataclasses.replace(weight, dtypes=("I8",))
    return Scaled((1, in_features), (quantized, Load(f"{layer}.SCB", (out_features,), ("F32",))), _LARGEST_INT8)
