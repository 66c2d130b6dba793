"""Weights for tests of CUDA operators: what goes to the device, and the float64 numbers that it stands for."""

from dataclasses import dataclass

import numpy as np
import torch

from tests.kernels.cuda_device import CudaModule
from tests.kernels.reference import round_weight

FORMATS = {"float32": 0, "bfloat16": 1, "float16": 2, "int8": 3, "int4": 4}  # WeightFormat
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
