"""Manifest expressions of weights quantized output by output."""

from collections.abc import Mapping, Sequence

from lmdeploy.turbomind.manifest import Expression, Load, RowQuantized, over_loads
from lmdeploy.turbomind.row_quantized.schemes import RowScheme
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex

_QUANTIZED_DTYPES = {"words": ("I32",), "bytes": ("I8",), "float4": ("U8", "I8")}


def with_row_quantized(
    tensors: Mapping[str, Expression], schemes: Sequence[RowScheme], index: SafetensorsIndex
) -> dict[str, Expression]:
    """Return the engine tensors with the codes in place of each weight that the checkpoint stores in such a scheme."""
    return {
        name: over_loads(expression, lambda load: _quantized_of(load, schemes, index) or load)
        for name, expression in tensors.items()
    }


def _quantized_of(weight: Load, schemes: Sequence[RowScheme], index: SafetensorsIndex) -> RowQuantized | None:
    layer = weight.name.removesuffix(".weight")
    if layer == weight.name or len(weight.shape) != 2:
        return None
    made = [_expression(layer, weight.shape, scheme, index) for scheme in schemes if _is_stored(layer, scheme, index)]
    fitting = [quantized for quantized in made if all(_is_there(load, index) for load in quantized.args)]
    # Without one that fits, what is wrong with the first is reported.
    return next(iter(fitting + made), None)


def _is_stored(layer: str, scheme: RowScheme, index: SafetensorsIndex) -> bool:
    found = index.tensors.get(f"{layer}.{scheme.quantized}")
    return found is not None and found.dtype in _QUANTIZED_DTYPES[scheme.layout]


def _is_there(load: Load, index: SafetensorsIndex) -> bool:
    found = index.tensors.get(load.name)
    return found is not None and found.shape == load.shape and found.dtype in load.dtypes


def _expression(layer: str, shape: tuple[int, ...], scheme: RowScheme, index: SafetensorsIndex) -> RowQuantized:
    out_features, in_features = shape
    group = in_features if scheme.group == -1 else scheme.group
    groups = -(-in_features // group)
    width = {"words": in_features * scheme.bits // 32, "bytes": in_features, "float4": in_features // 2}[scheme.layout]
    args = [
        Load(f"{layer}.{scheme.quantized}", (out_features, width), _QUANTIZED_DTYPES[scheme.layout]),
        Load(f"{layer}.{scheme.scale}", (out_features, groups), scheme.scales),
    ]
    more = []
    if scheme.has_zeros:
        rows = -(-out_features * scheme.bits // 32) if scheme.layout == "words" else out_features
        more.append("zeros")
        args.append(Load(f"{layer}.weight_zero_point", (rows, groups), _QUANTIZED_DTYPES[scheme.layout]))
    if f"{layer}.weight_g_idx" in index.tensors:
        more.append("groups")
        args.append(Load(f"{layer}.weight_g_idx", (in_features,), ("I32",)))
    if scheme.whole is not None:
        kind, name = scheme.whole
        found = index.tensors.get(f"{layer}.{name}")
        is_scalar = found is not None and found.shape == ()
        more.append(kind)
        args.append(Load(f"{layer}.{name}", () if is_scalar else (1,), ("F32",)))
    unit = 8 if scheme.layout != "words" else max(8, 32 // scheme.bits)
    problems = [] if in_features % unit == 0 else [f"{layer}: its {in_features} inputs must be a multiple of {unit}"]
    return RowQuantized(
        scheme.layout,
        8 if scheme.layout == "float4" else scheme.bits,
        group,
        tuple(more),
        shape,
        tuple(args),
        tuple(problems),
    )
