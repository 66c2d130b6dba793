"""Checkpoints of 8-bit weights and activations (W8A8): int8 or float8 codes with float scales.

Such a checkpoint has one byte a weight in ``X.weight`` and scales alongside it; layers it leaves as numbers have a
``X.weight`` of 16 or 32 bits. :func:`with_scales` puts codes times scales in the weight's place; how they are
multiplied is in ``backend_cpp/weights/w8a8.h``.

Names and shapes, by source:

* ``fp8`` (DeepSeek-V3, Qwen3-FP8; ``transformers``, ``FineGrainedFP8Config``): ``X.weight_scale_inv`` for blocks of
  ``weight_block_size``; without blocks one scale, ``X.weight_scale_inv`` or ``X.weight_scale``. DeepSeek-V4 has
  ``X.scale``, powers of two.
* ``fbgemm_fp8`` (Llama 3.1 405B FP8): ``X.weight_scale [out, 1]``.
* ``compressed-tensors`` (llm-compressor), formats ``int-quantized``, ``float-quantized`` and ``naive-quantized``:
  ``X.weight_scale`` ``[1]``, ``[out, 1]`` or for blocks of ``block_structure``.
* ``modelopt`` (NVIDIA's Model Optimizer), ``quant_algo`` FP8: ``X.weight_scale``, one for all; MXFP8, and
  compressed-tensors' ``mxfp8-quantized``: powers of two for blocks of 32 inputs (OCP Microscaling, 2023).
* ``smooth_quant`` (``lmdeploy lite smooth_quant``): ``X.scale [out, 1]``.
* Stacks of experts: ``lmdeploy.turbomind.stacked_experts``.

What compressed-tensors, ModelOpt and Quark store in other ways: ``lmdeploy.turbomind.row_quantized``.

Scales of activations (``X.input_scale`` and the like) are not used: activations are rounded by what they are.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.manifest import Expression, Load, Operation, RowQuantized, Scaled, over_loads
from lmdeploy.turbomind.row_quantized.schemes import (
    COMPRESSED_FORMATS,
    MXFP8,
    config_groups,
    is_of_rows,
    require,
    row_schemes,
)
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex
from lmdeploy.turbomind.stacked_experts import (
    MX_BLOCK,
    NUMBERS,
    POWERS,
    QUANTIZED_DTYPES,
    quantized_stack,
    scaled_part,
)

if TYPE_CHECKING:
    from typing_extensions import Self

METHODS = ("fp8", "fbgemm_fp8", "compressed-tensors", "modelopt", "quark", "smooth_quant")
_SCALE_NAMES = {
    "fp8": ("weight_scale_inv", "weight_scale", "scale"),
    "fbgemm_fp8": ("weight_scale",),
    "compressed-tensors": ("weight_scale",),
    "modelopt": ("weight_scale",),
    "quark": ("weight_scale",),
    "smooth_quant": ("scale",),
}
_UNUSED = re.compile(
    r"\.(input_scale|input_scale_ub|input_global_scale|input_zero_point|activation_scale|k_scale|v_scale|q_scale"
    r"|weight_shape|SCB|weight_format"
    r"|weight\.(absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.bitsandbytes__\w+))$"
)
_SCALES_OF_SCALES = ("weight_global_scale", "weight_scale_2")
_SMOOTH_QUANT_TYPES = ("int8", "float8_e4m3fn", "fp8")


@dataclass(frozen=True)
class ScaledWeights:
    """Quantization with scales of a checkpoint in config.json."""

    method: str  # as config.json names it, one of :data:`METHODS`
    # Outputs and inputs that share a scale; None: there is one for each output or one for all
    block: tuple[int, int] | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Self | None":
        """Return the method in ``quantization_config`` of config.json; None if it is none of :data:`METHODS`.

        Raises `UnsupportedModelError` for a variant that the engine cannot read.
        """
        given = config.get("quantization_config")
        if not isinstance(given, dict) or given.get("quant_method") not in METHODS:
            return None
        method = str(given["quant_method"])
        match method:
            case "fp8":
                row_schemes(config)  # refuses what is unknown
                return cls(method, _fp8_block(given))
            case "compressed-tensors":
                return cls(method, _compressed_block(given))
            case "modelopt" | "quark":
                row_schemes(config)  # refuses what is unknown
            case "smooth_quant":
                require(method, "quant_dtype", given.get("quant_dtype", "int8"), _SMOOTH_QUANT_TYPES)
        return cls(method)

    def is_scale(self, name: str) -> bool:
        """Return whether a tensor's name is that of a scale."""
        last = name.rpartition(".")[2]
        return (
            last in (*_SCALE_NAMES[self.method], *_SCALES_OF_SCALES) or last.endswith("_scale_inv") or is_unused(name)
        )


def is_unused(name: str) -> bool:
    """Return whether a tensor alongside codes says what the engine finds itself: sizes, how to round activations."""
    return _UNUSED.search(name) is not None


def _fp8_block(given: Mapping[str, Any]) -> tuple[int, int] | None:
    require("fp8", "fmt", given.get("fmt") or "e4m3", ("e4m3", "float8_e4m3fn"))
    require("fp8", "activation_scheme", given.get("activation_scheme") or "dynamic", ("dynamic", "static"))
    require("fp8", "expert_dtype", given.get("expert_dtype") or "fp8", ("fp8", "fp4"))
    return _block("fp8", "weight_block_size", given.get("weight_block_size"))


def _block(method: str, name: str, size: object) -> tuple[int, int] | None:
    if size is None:
        return None
    if not isinstance(size, list | tuple) or len(size) != 2 or not all(type(n) is int and n > 0 for n in size):
        raise UnsupportedModelError(f"{method}: {name} must be two positive integers, got {size!r}")
    if size[1] % 8:
        raise UnsupportedModelError(f"{method}: the inputs of {name} must be a multiple of 8, got {size[1]}")
    return size[0], size[1]


def _compressed_block(given: Mapping[str, Any]) -> tuple[int, int] | None:
    method = "compressed-tensors"
    groups = config_groups(given)
    sparsity = (given.get("sparsity_config") or {}).get("format") or "dense"
    require(method, "sparsity_config format", sparsity, ("dense",))
    row_schemes({"quantization_config": given})  # refuses what is unknown
    scaled = [group for group in groups if not is_of_rows(group, given.get("format"))]
    blocks = {_group_block(group, given.get("format")) for group in scaled}
    if len(blocks) > 1:
        raise UnsupportedModelError(f"{method} weights with blocks of several sizes are not supported, got {blocks}")
    return blocks.pop() if blocks else None


def _group_block(group: Mapping[str, Any], whole_format: object) -> tuple[int, int] | None:
    """Check one group of layers; return the blocks of its scales."""
    method = "compressed-tensors"
    require(method, "format", group.get("format") or whole_format, COMPRESSED_FORMATS)
    weights, activations = group.get("weights") or {}, group.get("input_activations")
    if group.get("output_activations"):
        raise UnsupportedModelError(f"{method} with output_activations is not supported")
    for what, side in (("weights", weights), ("input_activations", activations)):
        if side is None:
            continue
        require(method, f"{what}.num_bits", side.get("num_bits"), (8,))
        require(method, f"{what}.type", side.get("type") or "int", ("int", "float"))
        require(method, f"{what}.symmetric", side.get("symmetric", True), (True,))
    strategy = weights.get("strategy")
    if (group.get("format") or whole_format) == MXFP8:
        require(method, "weights.strategy and group_size", (strategy, weights.get("group_size")), (("group", 32),))
        return None  # the types of scales say it
    require(method, "weights.strategy", strategy, ("tensor", "channel", "block"))
    if strategy != "block":
        return None
    require(method, "weights.strategy block and type", weights.get("type"), ("float",))
    return _block(method, "block_structure", weights.get("block_structure") or [128, 128])


def with_scales(
    tensors: Mapping[str, Expression], weights: ScaledWeights, index: SafetensorsIndex
) -> dict[str, Expression]:
    """Return the engine tensors with codes and scales in place of each weight that the checkpoint stores so."""

    def of_stack(expression: Operation) -> Expression | None:
        if isinstance(expression, RowQuantized):
            return expression
        if stack := quantized_stack(expression, index):
            suffix = _SCALE_NAMES[weights.method][0].removeprefix("weight")
            return scaled_part(expression, stack, stack.name + suffix, weights.block, index)
        return None

    def stored(load: Load) -> Expression:
        found = index.tensors.get(load.name)
        is_quantized = found is not None and found.dtype in QUANTIZED_DTYPES and load.name.endswith(".weight")
        return _scaled(load, weights, index) if is_quantized and len(load.shape) == 2 else load

    return {name: over_loads(expression, stored, of_stack) for name, expression in tensors.items()}


def _scaled(weight: Load, method: ScaledWeights, index: SafetensorsIndex) -> Scaled:
    layer = weight.name.removesuffix(".weight")
    names = [f"{layer}.{name}" for name in _SCALE_NAMES[method.method]]
    name = next((name for name in names if name in index.tensors), names[0])
    found = index.tensors.get(name)
    out_features, in_features = weight.shape
    quantized = dataclasses.replace(weight, dtypes=QUANTIZED_DTYPES)
    sizes = [method.block, MX_BLOCK] if found is not None and found.dtype in POWERS else [method.block]
    blocks = [(size[0], min(size[1], in_features)) for size in sizes if size is not None]
    if blocks:
        shapes: list[tuple[int, ...]] = [(-(-out_features // n), -(-in_features // m)) for n, m in blocks]
        at = shapes.index(found.shape) if found is not None and found.shape in shapes else -1
        block, shape = blocks[at], shapes[at]
    elif found is not None and found.shape in {(), (1,), (1, 1)}:
        block, shape = (out_features, in_features), found.shape
    else:
        block, shape = (1, in_features), (out_features, 1)
        if found is not None and found.shape == (out_features,):
            shape = found.shape
    return Scaled(block, (quantized, Load(name, shape, NUMBERS + POWERS)))
