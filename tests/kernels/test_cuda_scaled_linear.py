"""Linear operators on a device with weights of one byte a code and float32 scales, against float64.

Few rows: x is rounded to half precision (2^-11 relatively, and 2^-25 of the 16 it is divided by), codes are exact,
sums float32. From 192 rows on, where scales are those of whole outputs, x is rounded to 8 bits row by row: int8 by at
most half of max |x| / 127; float8 by 2^-4 relatively, or, where it is small, by 2^-10 of max |x| / 448.
"""

import numpy as np
import pytest
import torch

from tests.kernels.cuda_device import CudaModule
from tests.kernels.cuda_weights import SCALED, DeviceWeight, scaled_weight
from tests.kernels.test_cuda_linear import check_broken_rows, run

MANY_ROWS = 192  # kWidenRows in linear.cu
SHAPES = [(1, 7, 8), (1, 33, 2208), (3, 130, 40), (9, 64, 520), (17, 50, 96), (70, 34, 100), (200, 40, 130)]


def bound_of(x: torch.Tensor, weight: DeviceWeight, kind: str) -> torch.Tensor:
    """Return how far each result may be off, as the module's text says."""
    size, weights = x.abs() @ weight.exact.abs().T, weight.exact.abs().sum(1)
    top = x.abs().amax(1, keepdim=True)
    sums = (x.shape[1] + 2) * 2.0**-23 * size
    if len(x) >= MANY_ROWS and kind == "int8 by output":
        return top / 254 * weights * (1 + 2.0**-10) + sums
    if len(x) >= MANY_ROWS and kind != "float8 by block":
        return 2.0**-4 * size + top / 448 * 2.0**-10 * weights + sums
    return 2 * 2.0**-11 * size + 16 * 2.0**-25 * weights + sums


def check(
    y: np.ndarray, x: torch.Tensor, weight: DeviceWeight, kind: str, before: torch.Tensor | float = 0.0
) -> torch.Tensor:
    """Compare ``y`` with ``x`` times the weight; return the errors."""
    exact = x.double() @ weight.exact.T + weight.bias + before
    error = (torch.from_numpy(y).double() - exact).abs()
    assert (error <= bound_of(x.double(), weight, kind) + 2.0**-23 * (weight.bias.abs() + abs(before))).all()
    return error


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize(("rows", "out_features", "in_features"), SHAPES)
def test_linear_is_within_the_stated_bound(
    cuda: CudaModule, rows: int, out_features: int, in_features: int, kind: str
) -> None:
    torch.manual_seed(rows)
    x, bias = torch.randn(rows, in_features), torch.randn(out_features)
    weight = scaled_weight(cuda, torch.randn(out_features, in_features) * 1e-3, kind, bias)
    check(run(cuda, weight, x), x, weight, kind)


def test_many_rows_of_int8_are_exact_products_of_rounded_rows(cuda: CudaModule) -> None:
    torch.manual_seed(0)
    x = torch.randn(MANY_ROWS, 100) * torch.rand(MANY_ROWS, 1)
    weight = scaled_weight(cuda, torch.randn(40, 100), "int8 by output")
    scale = x.abs().amax(1, keepdim=True) / 127
    steps = (x * (1 / scale)).round()
    y = torch.from_numpy(run(cuda, weight, x)).double()
    exact = (steps.double() * scale.double()) @ weight.exact.T
    # A value on the edge between two codes may fall either way.
    assert ((y - exact).abs() <= 4 * 2.0**-24 * exact.abs() + 1e-9).double().mean() > 0.98


def test_many_rows_of_float8_are_products_of_rounded_rows(cuda: CudaModule) -> None:
    torch.manual_seed(0)
    x = torch.randn(MANY_ROWS, 100) * torch.rand(MANY_ROWS, 1)
    weight = scaled_weight(cuda, torch.randn(40, 100), "float8 by output")
    scale = x.abs().amax(1, keepdim=True) / 448
    steps = (x * (1 / scale)).to(torch.float8_e4m3fn)
    y = torch.from_numpy(run(cuda, weight, x)).double()
    rounded = steps.double() * scale.double()
    # cuBLASLt keeps fewer than float32's bits of a sum of float8 products on Hopper: 14 (DeepSeek-V3, 3.5.2).
    bound = 2.0**-13 * (rounded.abs() @ weight.exact.abs().T)
    assert ((y - rounded @ weight.exact.T).abs() <= bound).double().mean() > 0.98


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("rows", [1, 12, 30, 200])
def test_a_result_can_be_added(cuda: CudaModule, rows: int, kind: str) -> None:
    torch.manual_seed(rows)
    x, before, bias = torch.randn(rows, 64), torch.randn(rows, 20), torch.randn(20)
    weight = scaled_weight(cuda, torch.randn(20, 64), kind, bias)
    check(cuda.linear(weight.on_device, x.numpy(), before.numpy(), True), x, weight, kind, before.double())


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("size", [1e-6, 1e5])
@pytest.mark.parametrize("rows", [2, 30, 200])
def test_weights_of_any_size_keep_their_precision(cuda: CudaModule, rows: int, size: float, kind: str) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, 64)
    weight = scaled_weight(cuda, torch.randn(20, 64) * size, kind)
    check(run(cuda, weight, x), x, weight, kind)


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("rows", [9, 40, 200])
def test_not_a_number_stays_in_its_own_row(cuda: CudaModule, rows: int, kind: str) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, 40)
    weight = scaled_weight(cuda, torch.randn(12, 40), kind)
    check_broken_rows(cuda, weight, x)


@pytest.mark.parametrize("rows", [3, 40, 200])
@pytest.mark.parametrize("block", [(1, 80), (16, 40)])
def test_a_code_that_is_no_number_spoils_its_output_alone(cuda: CudaModule, rows: int, block: tuple[int, int]) -> None:
    torch.manual_seed(1)
    codes = torch.randn(20, 80).to(torch.float8_e4m3fn).view(torch.uint8)
    codes[13, 77] = 0xFF
    scales = torch.ones(-(-20 // block[0]), -(-80 // block[1]))
    packed, group, block_scales, output_scales = cuda.pack_scaled(codes.numpy(), True, scales.numpy(), *block)
    on_device = cuda.Weight(
        packed, None, None, None, None, 5, 20, 80, group, block_scales=block_scales, output_scales=output_scales
    )
    y = cuda.linear(on_device, torch.randn(rows, 80).numpy(), np.zeros((rows, 20), np.float32), False)
    assert np.isnan(y[:, 13]).all()
    assert np.isfinite(np.delete(y, 13, axis=1)).all()
