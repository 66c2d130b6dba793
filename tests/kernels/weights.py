"""Weights for tests of operators: what is on the device, and the float64 numbers that it stands for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.kernels.device import Device
from tests.kernels.reference import round_weight, scaled_values

FORMATS = {
    "float32": 0,
    "bfloat16": 1,
    "float16": 2,
    "int8": 3,
    "int4": 4,
    "float8": 5,
    "int5": 6,
    "int6": 7,
}  # WeightFormat
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Weight:
    """A weight on a device.

    ``native``: the compiled module's; ``exact``, ``bias``: ``[out_features, in_features]`` and ``[out_features]``
    float64: what it stands for; ``group``, ``order``: of codes: inputs that share a scale, and which input each code is
    for, or None.
    """

    native: Any
    exact: torch.Tensor
    bias: torch.Tensor
    group: int = 0
    order: torch.Tensor | None = None


# Fields of LinearWeight after its shape.
_FIELDS = {
    "bias": None, "group": 0, "scales": None, "zeros": None, "input_order": None, "block_scales": None,
    "output_scales": None, "mins": None, "scale_groups": 1, "is_tiled": False, "is_row_major": False,
}  # fmt: skip


def _native(device: Device, data: Any, kind: str, shape: Sequence[int], **fields: Any) -> Any:
    return device.native.weight(data, FORMATS[kind], *shape, *(_FIELDS | fields).values())


def _exact_bias(bias: torch.Tensor | None, out_features: int) -> torch.Tensor:
    return torch.zeros(out_features).double() if bias is None else bias.double()


def make_weight(
    device: Device, weight: torch.Tensor, kind: str, group: int = 0, bias: torch.Tensor | None = None
) -> Weight:
    """Return ``weight`` ``[out_features, in_features]`` float32 in the format ``kind``, rounded for each ``group``."""
    exact_bias = _exact_bias(bias, weight.shape[0])
    if kind in _DTYPES:
        stored = weight.to(_DTYPES[kind])
        bits = stored.view(torch.int32 if kind == "float32" else torch.int16)
        native = _native(device, bits, kind, weight.shape, bias=bias)
        return Weight(native, stored.double(), exact_bias)
    weight_bits = int(kind.removeprefix("int"))
    quantized, scales = device.module.pack_quantized(weight.contiguous().numpy(), weight_bits, group)
    native = _native(device, quantized, kind, weight.shape, bias=bias, group=group, scales=scales)
    return Weight(native, round_weight(weight, weight_bits, group), exact_bias, group)


# How 8-bit weights of checkpoints are scaled: the type of their codes, and outputs and inputs that share a scale.
SCALED = {
    "int8 by output": (torch.int8, (1, 1 << 20)),
    "int8 by tensor": (torch.int8, (1 << 20, 1 << 20)),
    "float8 by output": (torch.float8_e4m3fn, (1, 1 << 20)),
    "float8 by tensor": (torch.float8_e4m3fn, (1 << 20, 1 << 20)),
    "float8 by block": (torch.float8_e4m3fn, (32, 40)),
    "float8 by wide block": (torch.float8_e4m3fn, (128, 128)),
}


def quantize_scaled(weight: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes of ``weight`` ``[out_features, in_features]`` as one of :data:`SCALED`, and their scales."""
    dtype, block = SCALED[kind]
    is_float8 = dtype == torch.float8_e4m3fn
    rows, columns = (min(size, limit) for size, limit in zip(block, weight.shape, strict=True))
    grid = torch.nn.functional.pad(weight, (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows))
    tops = grid.view(grid.shape[0] // rows, rows, -1, columns).abs().amax((1, 3))
    scales = tops / (448 if is_float8 else 127)
    steps = weight.double() / scaled_values(torch.ones_like(weight), scales, block)
    return steps.float().to(dtype) if is_float8 else steps.round().clamp(-127, 127).to(dtype), scales


def quantized_weight(
    device: Device,
    quantized: torch.Tensor,
    scales: torch.Tensor,
    block: tuple[int, int],
    bias: torch.Tensor | None = None,
) -> Weight:
    """Return codes ``[out_features, in_features]`` of int8 or float8 with a scale for each block, as a weight."""
    is_float8 = quantized.dtype == torch.float8_e4m3fn
    packed, group, block_scales, output_scales = device.module.pack_scaled(
        quantized.contiguous().view(torch.uint8).numpy(), is_float8, scales.contiguous().numpy(), *block
    )
    native = _native(
        device, packed, "float8" if is_float8 else "int8", quantized.shape, group=group, block_scales=block_scales,
        output_scales=output_scales, bias=bias,
    )  # fmt: skip
    return Weight(native, scaled_values(quantized, scales, block), _exact_bias(bias, quantized.shape[0]), group)


def scaled_weight(device: Device, weight: torch.Tensor, kind: str, bias: torch.Tensor | None = None) -> Weight:
    """Return ``weight`` ``[out_features, in_features]`` float32 rounded to codes as one of :data:`SCALED` says."""
    return quantized_weight(device, *quantize_scaled(weight, kind), SCALED[kind][1], bias)


def weight_of_kind(
    device: Device, weight: torch.Tensor, kind: str, group: int = 0, bias: torch.Tensor | None = None
) -> Weight:
    """Return :func:`scaled_weight` of one of :data:`SCALED`, and :func:`make_weight` of other kinds."""
    return (
        scaled_weight(device, weight, kind, bias) if kind in SCALED else make_weight(device, weight, kind, group, bias)
    )


def group_quantized_weight(
    device: Device, shape: tuple[int, int], bits: int, group: int, *, shuffles_inputs: bool
) -> Weight:
    """Return random codes with a scale and a zero point for each group, as AWQ and GPTQ checkpoints hold them."""
    out_features, in_features = shape
    groups, tiles = -(-in_features // group), -(-out_features // 16)
    quantized = torch.randint(0, 2**bits, shape, dtype=torch.uint8)
    scales = (torch.rand(tiles, groups, 16) * 0.02 + 0.001).half()
    # GPTQ's zero points go up to 2^bits, which is 16 for 4 bits.
    zeros = torch.randint(0, min(2**bits + 1, 256), (tiles, groups, 16), dtype=torch.uint8)
    order = torch.randperm(in_features).int() if shuffles_inputs else None
    packed = device.module.pack_values(quantized.numpy(), bits, group)
    native = _native(device, packed, f"int{bits}", shape, group=group, scales=scales, zeros=zeros, input_order=order)

    def of_each_value(x: torch.Tensor) -> torch.Tensor:
        by_output = x.permute(0, 2, 1).reshape(tiles * 16, groups)[:out_features]
        return by_output.double().repeat_interleave(group, dim=1)[:, :in_features]

    exact = (quantized.double() - of_each_value(zeros)) * of_each_value(scales)
    if order is not None:
        in_place = torch.empty_like(exact)
        in_place[:, order.long()] = exact
        exact = in_place
    return Weight(native, exact, torch.zeros(out_features).double(), group, order)


def group_minima_weight(
    device: Device,
    shape: tuple[int, int],
    bits: int,
    group: int,
    quantized: torch.Tensor | None = None,
    scale_groups: int = 1,
) -> tuple[Weight, torch.Tensor]:
    """Return codes, random ones unless given, with a scale and a minimum for each group, as GGUF files hold them.

    Also the sizes of what is added up, ``|scale code| + |minimum|``, of which the numbers are differences. Where
    ``scale_groups`` groups share a half, as in K-quants, each has a factor.
    """
    out_features, in_features = shape
    groups, tiles = in_features // group, -(-out_features // 16)
    if quantized is None:
        quantized = torch.randint(0, 2**bits, shape, dtype=torch.uint8)
    scales = (torch.rand(tiles, groups, 16) * 0.02 + 0.001).half()
    mins = (-scales * 2 ** (bits - 1) * (0.5 + torch.rand(scales.shape))).half()
    stored = [scales, mins]
    if scale_groups > 1:
        factors = torch.randint(-127, 128, scales.shape, dtype=torch.int8)
        shared = [one[:, ::scale_groups] for one in stored]
        stored = [torch.cat([one.reshape(-1), factors.reshape(-1).view(torch.half)]) for one in shared]
        scales, mins = (factors * one.double().repeat_interleave(scale_groups, dim=1) for one in shared)
    packed = device.module.pack_values(quantized.numpy(), bits, group)
    native = _native(
        device, packed, f"int{bits}", shape, group=group, scales=stored[0], mins=stored[1], scale_groups=scale_groups
    )

    def of_each_value(x: torch.Tensor) -> torch.Tensor:
        by_output = x.permute(0, 2, 1).reshape(tiles * 16, groups)[:out_features]
        return by_output.double().repeat_interleave(group, dim=1)

    large, small = quantized.double() * of_each_value(scales), of_each_value(mins)
    return Weight(native, large + small, torch.zeros(out_features).double(), group), large.abs() + small.abs()
