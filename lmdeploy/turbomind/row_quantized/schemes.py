"""Quantization schemes of such layers, by the tool that wrote them.

* ``compressed-tensors`` (llm-compressor; ``compressed_tensors.compressors`` has the packing): ``pack-quantized``,
  ``int-quantized`` with 4 bits, groups or zero points, ``mxfp4-pack-quantized`` and ``nvfp4-pack-quantized``.
* ``modelopt`` (NVIDIA's Model Optimizer): ``quant_algo`` NVFP4, for all layers or, of MIXED_PRECISION, some. Scales are
  times ``weight_scale_2``.
* ``fp8`` (DeepSeek-V4) with ``expert_dtype`` fp4: experts of 4-bit floats in groups of 32, scales as MXFP4 has them,
  ``X.scale``; or, of ModelOpt's ``quant_algo``, as NVFP4.
* ``quark`` (AMD's): 4-bit floats in groups of 32 with scales that are powers of two, as OCP's MXFP4 has them.

Scales of activations are not used: these are rounded by what they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lmdeploy.errors import UnsupportedModelError

NUMBERS = ("F32", "BF16", "F16")
_PACKED, _MXFP4, _NVFP4 = "pack-quantized", "mxfp4-pack-quantized", "nvfp4-pack-quantized"
MXFP8 = "mxfp8-quantized"
_BYTES = ("int-quantized", "naive-quantized")
COMPRESSED_FORMATS = (*_BYTES, "float-quantized", _PACKED, _MXFP4, _NVFP4, MXFP8)
MODELOPT_ALGORITHMS = ("FP8", "NVFP4", "W4A16_NVFP4", "MXFP8")
_INSTEAD = "serve the model it was made from with --weight-bits 4 or 8, or make that smaller with `lmdeploy lite`"


@dataclass(frozen=True)
class RowScheme:
    """How a layer ``X`` is stored (``backend_cpp/weights/quantized/row_quantized.h``)."""

    layout: Literal["words", "bytes", "float4"]  # ``words`` (int32), ``bytes`` (int8) or ``float4`` (two in a byte)
    bits: int  # of a code, 4 or 8
    group: int  # neighbouring inputs that share a scale; -1: all of a row
    has_zeros: bool = False  # there are zero points, ``X.weight_zero_point``
    quantized: str = "weight_packed"  # the tensor of quantized values is ``X.<quantized>``
    scale: str = "weight_scale"  # the tensor of scales is ``X.<scale>``
    scales: tuple[str, ...] = NUMBERS  # types that it may have
    # Global scale: whether it multiplies (``factor``) or divides (``divisor``) all others, and its name
    whole: tuple[str, str] | None = None


def require(method: str, what: str, found: object, supported: tuple[object, ...]) -> None:
    """Raise ``UnsupportedModelError`` naming a setting, what is supported and what to do unless it is supported."""
    if found not in supported:
        names = ", ".join(map(str, supported))
        raise UnsupportedModelError(
            f"{method} weights with {what} {found!r} are not supported; supported: {names}; {_INSTEAD}"
        )


def row_schemes(config: Mapping[str, Any]) -> tuple[RowScheme, ...]:
    """Return the ways in which layers are stored output by output, by ``quantization_config`` of config.json.

    Raises `UnsupportedModelError` for a variant that the engine cannot read.
    """
    given = config.get("quantization_config")
    if not isinstance(given, dict):
        return ()
    match given.get("quant_method"):
        case "compressed-tensors":
            found = [_compressed(group, given.get("format")) for group in config_groups(given)]
            return tuple(dict.fromkeys(scheme for scheme in found if scheme is not None))
        case "modelopt":
            return _modelopt(given)
        case "quark":
            return (_quark(given),)
        case "fp8":
            float4 = RowScheme("float4", 4, 32, quantized="weight", scale="scale", scales=("F8_E8M0", "U8"))
            schemes = (float4,) if "fp4" in {given.get("expert_dtype"), config.get("expert_dtype")} else ()
            has_more = given.get("quant_algo") or given.get("moe_quant_algo")
            return schemes + (_modelopt(given) if has_more else ())
    return ()


def config_groups(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the groups of layers of a compressed-tensors checkpoint."""
    groups = given.get("config_groups") or {}
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise UnsupportedModelError(f"compressed-tensors: config_groups must describe the weights, got {groups!r}")
    found = [group for group in groups.values() if group.get("weights")]
    if not found and not given.get("kv_cache_scheme"):  # else the cache alone has scales
        raise UnsupportedModelError(f"compressed-tensors: config_groups must describe the weights, got {groups!r}")
    return found


def is_of_rows(group: Mapping[str, Any], whole_format: object) -> bool:
    """Return whether a group of compressed-tensors is stored as this module says, not as bytes with a scale each."""
    stored, weights = group.get("format") or whole_format, group.get("weights") or {}
    if stored in (_PACKED, _MXFP4, _NVFP4):
        return True
    is_scaled = weights.get("num_bits") == 8 and weights.get("strategy") != "group" and weights.get("symmetric", True)
    return stored in _BYTES and (weights.get("type") or "int") == "int" and not is_scaled


def _compressed(group: Mapping[str, Any], whole_format: object) -> RowScheme | None:
    if not is_of_rows(group, whole_format):
        return None
    method, stored = "compressed-tensors", group.get("format") or whole_format
    weights, activations = group.get("weights") or {}, group.get("input_activations")
    if group.get("output_activations"):
        raise UnsupportedModelError(f"{method} with output_activations is not supported; {_INSTEAD}")
    is_float4 = stored in (_MXFP4, _NVFP4)
    if activations is not None:
        require(method, "input_activations.num_bits", activations.get("num_bits"), (8, 4) if is_float4 else (8,))
    if is_float4:
        return _float4(method, weights, is_nv=stored == _NVFP4)
    require(method, "weights.type", weights.get("type") or "int", ("int",))
    require(method, "weights.num_bits", weights.get("num_bits"), (4, 8))
    require(method, "weights.strategy", weights.get("strategy"), ("group", "channel"))
    size: Any = -1
    if weights.get("strategy") == "group":
        size = weights.get("group_size")
        if type(size) is not int or size < 1 or size % 8:
            raise UnsupportedModelError(
                f"{method}: weights.group_size must be a positive multiple of 8, got {size!r}; {_INSTEAD}"
            )
    has_zeros = not weights.get("symmetric", True)
    if stored == _PACKED:
        return RowScheme("words", weights["num_bits"], size, has_zeros)
    return RowScheme("bytes", weights["num_bits"], size, has_zeros, "weight")


def _float4(method: str, weights: Mapping[str, Any], *, is_nv: bool) -> RowScheme:
    require(method, "weights.type", weights.get("type"), ("float",))
    require(method, "weights.num_bits", weights.get("num_bits"), (4,))
    require(method, "weights.symmetric", weights.get("symmetric", True), (True,))
    require(method, "weights.group_size", weights.get("group_size"), (16,) if is_nv else (32,))
    if is_nv:
        return RowScheme("float4", 4, 16, scales=("F8_E4M3",), whole=("divisor", "weight_global_scale"))
    return RowScheme("float4", 4, 32, scales=("U8",))


def _modelopt(given: Mapping[str, Any]) -> tuple[RowScheme, ...]:
    layers = [given]
    if given.get("quant_algo") == "MIXED_PRECISION":  # which layer is of which kind its tensors say
        layers = list((given.get("quantized_layers") or {}).values())
    for layer in layers:
        require("modelopt", "quant_algo", layer.get("quant_algo"), MODELOPT_ALGORITHMS)
        size = 32 if layer.get("quant_algo") == "MXFP8" else 16
        require("modelopt", "group_size", layer.get("group_size") or size, (size,))
    return (RowScheme("float4", 4, 16, quantized="weight", scales=("F8_E4M3",), whole=("factor", "weight_scale_2")),)


def _quark(given: Mapping[str, Any]) -> RowScheme:
    for several in ("layer_quant_config", "layer_type_quant_config"):
        if given.get(several):
            raise UnsupportedModelError(f"quark weights with {several} are not supported; {_INSTEAD}")
    weights = (given.get("global_quant_config") or {}).get("weight")
    if not isinstance(weights, dict):
        raise UnsupportedModelError(f"quark: global_quant_config.weight must be an object, got {weights!r}; {_INSTEAD}")
    for what, supported in (("dtype", "fp4"), ("qscheme", "per_group"), ("group_size", 32), ("scale_format", "e8m0")):
        require("quark", what, weights.get(what), (supported,))
    return RowScheme("float4", 4, 32, quantized="weight", scales=("U8",))
