"""Linear operators on a device against float64, over shapes that do and do not fill slabs, tiles and splits.

A result is off by the rounding of x (and, widened, of the weight) to 16 bits, relative 2^-9 for bfloat16 and 2^-11 for
half precision each, by half precision's absolute step of 2^-24 / 2 times the 16 that x is divided by, and by float32
sums: n 2^-24 sum |x w| for n terms (Higham, 2002, 3.5), a matrix instruction perhaps truncating where float32 rounds.
"""

import numpy as np
import pytest
import torch

from tests.kernels.cuda_device import CudaModule
from tests.kernels.cuda_weights import DeviceWeight, device_weight, stored_codes_weight

STEPS = {"float32": 0.0, "bfloat16": 2.0**-9, "float16": 2.0**-11, "int8": 2.0**-11, "int4": 2.0**-11}
KINDS = list(STEPS)


def check(y: np.ndarray, x: torch.Tensor, weight: DeviceWeight, kind: str, before: torch.Tensor | None = None) -> None:
    """Compare ``y`` with ``x`` times the weight, within what the module's text says."""
    exact = x.double() @ weight.exact.T + weight.bias
    if before is not None:
        exact += before.double()
    size = x.double().abs() @ weight.exact.abs().T + weight.bias.abs() + (0 if before is None else before.abs())
    smallest = 0 if STEPS[kind] == 0 else 16 * 2.0**-25 * weight.exact.abs().sum(1)
    bound = (2 * STEPS[kind] + (x.shape[1] + 2) * 2.0**-23) * size + smallest
    assert ((torch.from_numpy(y).double() - exact).abs() <= bound).all()


def run(cuda: CudaModule, weight: DeviceWeight, x: torch.Tensor) -> np.ndarray:
    y = np.full((x.shape[0], weight.exact.shape[0]), np.nan, np.float32)
    result: np.ndarray = cuda.linear(weight.on_device, x.numpy(), y, False)
    return result


def check_broken_rows(cuda: CudaModule, weight: DeviceWeight, x: torch.Tensor) -> None:
    """Put NaN and infinity into two rows of ``x``, of at least 34 inputs, and see that only theirs are broken."""
    clean = [row for row in range(len(x)) if row not in (4, 5)]
    expected = run(cuda, weight, x)[clean]
    x[4, 7], x[5, 33] = float("nan"), float("inf")
    y = run(cuda, weight, x)
    assert (y[clean] == expected).all()
    assert np.isnan(y[4]).all()
    assert not np.isfinite(y[5]).any()


SHAPES = [
    (1, 7, 8),
    (1, 33, 2208),  # in splits, as 33 x 520 is
    (3, 130, 40),
    (9, 64, 520),
    (16, 40, 64),
    (17, 50, 96),
    (33, 150, 520),
    (70, 34, 48),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "out_features", "in_features"), SHAPES)
def test_linear_is_within_the_rounding_bound_of_float64(
    cuda: CudaModule, rows: int, out_features: int, in_features: int, kind: str
) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, in_features)
    bias = torch.randn(out_features)
    weight = device_weight(cuda, torch.randn(out_features, in_features), kind, 32, bias)
    check(run(cuda, weight, x), x, weight, kind)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("rows", "out_features", "in_features"), [(1, 7, 5), (20, 33, 31)])
def test_inputs_need_not_be_a_multiple_of_eight(
    cuda: CudaModule, rows: int, out_features: int, in_features: int, kind: str
) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, in_features)
    weight = device_weight(cuda, torch.randn(out_features, in_features), kind)
    check(run(cuda, weight, x), x, weight, kind)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("group", [8, 24, 32, 64, 128])
@pytest.mark.parametrize(
    ("rows", "out_features", "in_features"), [(1, 16, 32), (2, 7, 33), (12, 70, 300), (40, 33, 100), (200, 40, 130)]
)
def test_stored_codes_of_any_group_are_exact(
    cuda: CudaModule, rows: int, out_features: int, in_features: int, group: int, bits: int
) -> None:
    torch.manual_seed(rows + group)
    x = torch.randn(rows, in_features)
    weight = stored_codes_weight(cuda, (out_features, in_features), bits, group, shuffles_inputs=False)
    check(run(cuda, weight, x), x, weight, f"int{bits}")


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [3, 20, 200])
def test_codes_in_an_order_of_their_own_meet_their_inputs(cuda: CudaModule, rows: int, bits: int) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, 96)
    weight = stored_codes_weight(cuda, (24, 96), bits, 32, shuffles_inputs=True)
    check(run(cuda, weight, x), x, weight, f"int{bits}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 12, 30, 200])
def test_a_result_can_be_added(cuda: CudaModule, rows: int, kind: str) -> None:
    torch.manual_seed(rows)
    x, before, bias = torch.randn(rows, 64), torch.randn(rows, 20), torch.randn(20)
    weight = device_weight(cuda, torch.randn(20, 64), kind, 32, bias)
    check(cuda.linear(weight.on_device, x.numpy(), before.numpy(), True), x, weight, kind, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e-3, 1e5])
@pytest.mark.parametrize("rows", [2, 30, 200])
def test_small_and_large_inputs_keep_their_precision(cuda: CudaModule, rows: int, size: float, kind: str) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, 64) * size
    weight = device_weight(cuda, torch.randn(20, 64), kind, 32)
    y = run(cuda, weight, x)
    check(y, x, weight, kind)
    exact = x.double() @ weight.exact.T
    error = (torch.from_numpy(y).double() - exact).norm() / exact.norm()
    assert error < 2.0**-9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [9, 40])
def test_not_a_number_stays_in_its_own_row(cuda: CudaModule, rows: int, kind: str) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, 40)
    weight = device_weight(cuda, torch.randn(12, 40), kind, 8)
    check_broken_rows(cuda, weight, x)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("rows", "heads", "out_features", "in_features"), [(1, 3, 20, 40), (9, 2, 33, 17), (60, 4, 33, 64)]
)
@pytest.mark.parametrize("gap", [0, 3, 4])
def test_each_head_has_a_map_of_its_own(
    cuda: CudaModule, rows: int, heads: int, out_features: int, in_features: int, gap: int, kind: str
) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, heads, in_features + gap)
    weight = device_weight(cuda, torch.randn(heads * out_features, in_features), kind)
    y = cuda.head_linear(weight.on_device, x.numpy(), gap, np.empty((rows, heads, out_features), np.float32))
    for head in range(heads):
        own = slice(head * out_features, (head + 1) * out_features)
        part = DeviceWeight(None, weight.exact[own], weight.bias[own])
        check(y[:, head], x[:, head, :in_features], part, kind)
