"""Weights for tests of CUDA operators: what goes to the device, and the float64 numbers that it stands for."""

from dataclasses import dataclass

import numpy as np
import torch

from tests.kernels.cuda_device import CudaModule
from tests.kernels.reference import round_weight, scaled_values

FORMATS = {"float32": 0, "bfloat16": 1, "float16": 2, "int8": 3, "int4": 4, "float8": 5}  # WeightFormat
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class DeviceWeight:
    """``on_device`` is the module's; ``exact`` ``[out_features, in_features]`` and ``bias`` are float64."""

    on_device: object
    exact: torch.Tensor
    bias: torch.Tensor


def device_weight(
    cuda: CudaModule, weight: torch.Tensor, kind: str, group: int = 0, bias: torch.Tensor | None = None
) -> DeviceWeight:
    """Return ``weight`` ``[out_features, in_features]`` float32 in the format ``kind``, rounded for each ``group``."""
    bias_array = None if bias is None else bias.numpy()
    exact_bias = torch.zeros(weight.shape[0]).double() if bias is None else bias.double()
    if kind in _DTYPES:
        stored = weight.to(_DTYPES[kind])
        bits = stored.view(torch.int32 if kind == "float32" else torch.int16).numpy()
        on_device = cuda.Weight(bits, bias_array, None, None, None, FORMATS[kind], *weight.shape, 0)
        return DeviceWeight(on_device, stored.double(), exact_bias)
    bits_per_code = int(kind.removeprefix("int"))
    codes, scales = cuda.pack_rounded(weight.numpy(), bits_per_code, group)
    on_device = cuda.Weight(codes, bias_array, scales, None, None, FORMATS[kind], *weight.shape, group)
    return DeviceWeight(on_device, round_weight(weight, bits_per_code, group), exact_bias)


# How 8-bit weights of checkpoints are scaled: the type of their codes, and outputs and inputs that share a scale.
SCALED = {
    "int8 by output": (torch.int8, (1, 1 << 20)),
    "float8 by output": (torch.float8_e4m3fn, (1, 1 << 20)),
    "float8 by tensor": (torch.float8_e4m3fn, (1 << 20, 1 << 20)),
    "float8 by block": (torch.float8_e4m3fn, (32, 40)),
}


def scaled_weight(cuda: CudaModule, weight: torch.Tensor, kind: str, bias: torch.Tensor | None = None) -> DeviceWeight:
    """Return ``weight`` ``[out_features, in_features]`` float32 rounded to codes as one of :data:`SCALED` says."""
    dtype, block = SCALED[kind]
    is_float8 = dtype == torch.float8_e4m3fn
    rows, columns = (min(size, limit) for size, limit in zip(block, weight.shape, strict=True))
    grid = torch.nn.functional.pad(weight, (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows))
    tops = grid.view(grid.shape[0] // rows, rows, -1, columns).abs().amax((1, 3))
    scales = tops / (448 if is_float8 else 127)
    steps = weight.double() / scaled_values(torch.ones_like(weight), scales, block)
    codes = steps.float().to(dtype) if is_float8 else steps.round().clamp(-127, 127).to(dtype)
    packed, group, block_scales, output_scales = cuda.pack_scaled(
        codes.view(torch.uint8).numpy(), is_float8, scales.numpy(), *block
    )
    on_device = cuda.Weight(
        packed, None if bias is None else bias.numpy(), None, None, None, FORMATS["float8" if is_float8 else "int8"],
        *weight.shape, group, block_scales=block_scales, output_scales=output_scales,
    )  # fmt: skip
    exact_bias = torch.zeros(weight.shape[0]).double() if bias is None else bias.double()
    return DeviceWeight(on_device, scaled_values(codes, scales, block), exact_bias)


def stored_codes_weight(
    cuda: CudaModule, shape: tuple[int, int], bits: int, group: int, *, shuffles_inputs: bool
) -> DeviceWeight:
    """Return random codes with a scale and a zero point for each group, as AWQ and GPTQ checkpoints hold them."""
    out_features, in_features = shape
    groups, tiles = -(-in_features // group), -(-out_features // 16)
    codes = torch.randint(0, 2**bits, shape, dtype=torch.uint8)
    scales = (torch.rand(tiles, groups, 16) * 0.02 + 0.001).half()
    # GPTQ's zero points go up to 2^bits, which is 16 for 4 bits.
    zeros = torch.randint(0, min(2**bits + 1, 256), (tiles, groups, 16), dtype=torch.uint8)
    order = torch.randperm(in_features).int() if shuffles_inputs else None
    on_device = cuda.Weight(
        cuda.pack_codes(codes.numpy(), bits, group), None, scales.view(torch.int16).numpy().view(np.uint16),
        zeros.numpy(), None if order is None else order.numpy(), FORMATS[f"int{bits}"], *shape, group,
    )  # fmt: skip

    def of_each_code(x: torch.Tensor) -> torch.Tensor:
        by_output = x.permute(0, 2, 1).reshape(tiles * 16, groups)[:out_features]
        return by_output.double().repeat_interleave(group, dim=1)[:, :in_features]

    exact = (codes.double() - of_each_code(zeros)) * of_each_code(scales)
    if order is not None:
        in_place = torch.empty_like(exact)
        in_place[:, order.long()] = exact
        exact = in_place
    return DeviceWeight(on_device, exact, torch.zeros(out_features).double())
