"""Kernels against float64, over shapes that do and do not fill vectors and tiles."""

import pytest
import torch

from lmdeploy import _turbomind
from lmdeploy.turbomind import ops as ops  # registers torch.ops.turbomind
from tests.kernels.reference import round_activations, round_weight

# A float32 dot product of n terms in any order is within n 2^-24 sum |x w| of the exact one (Higham, 2002, 3.5).
EPS = 2.0**-24


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "out_features", "in_features"), [(1, 7, 5), (3, 64, 64), (6, 129, 100), (53, 96, 576), (200, 33, 31)]
)
def test_linear_is_within_the_rounding_bound_of_float64(
    rows: int, out_features: int, in_features: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, in_features)
    weight = torch.randn(out_features, in_features).to(dtype)
    bias = torch.randn(out_features)
    y = torch.ops.turbomind.linear(x, weight, bias)
    exact = x.double() @ weight.double().T + bias.double()
    bound = (in_features + 1) * EPS * (x.double().abs() @ weight.double().abs().T + bias.double().abs())
    assert ((y.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_of_linear_is_bitwise_the_same_alone_and_among_others(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(101, 600)
    weight = torch.randn(70, 600).to(dtype)
    together = torch.ops.turbomind.linear(x, weight, None)
    for first, last in [(0, 1), (1, 3), (3, 10), (10, 60), (60, 101)]:
        assert torch.equal(torch.ops.turbomind.linear(x[first:last].contiguous(), weight, None), together[first:last])


SHAPES = [(1, 16, 32), (2, 7, 40), (9, 40, 576), (50, 33, 100), (3, 130, 1536)]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("rows", "out_features", "in_features"), SHAPES)
@pytest.mark.parametrize("group", [24, 32, 64, 256])
def test_a_rounded_linear_is_the_product_of_the_rounded_values(
    rows: int, out_features: int, in_features: int, group: int, bits: int
) -> None:
    torch.manual_seed(rows + bits)
    x = torch.randn(rows, in_features) * torch.rand(rows, 1)
    weight = torch.randn(out_features, in_features)
    y = torch.ops.turbomind.rounded_linear(x, weight, bits, group)
    rounded_x, rounded_weight = round_activations(x, group), round_weight(weight, bits, group)
    exact = rounded_x @ rounded_weight.T
    # Exact inside a group; the sum over groups is float32. A value on the edge between two codes may fall either way.
    edge = rounded_x.abs().amax() / 127 * rounded_weight.abs().amax() * 2
    bound = 8 * EPS * (rounded_x.abs() @ rounded_weight.abs().T) + 1e-6
    assert ((y.double() - exact).abs() <= bound + edge).all()
    assert ((y.double() - exact).abs() <= bound).double().mean() > 0.98


@pytest.mark.parametrize(("bits", "limit"), [(8, 0.008), (4, 0.09)])
def test_rounding_keeps_the_product_close_to_the_exact_one(bits: int, limit: float) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(20, 1024), torch.randn(200, 1024)
    exact = x.double() @ weight.double().T
    y = torch.ops.turbomind.rounded_linear(x, weight, bits, 32).double()
    assert (y - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt() < limit


@pytest.mark.parametrize("bits", [8, 4])
def test_a_row_of_a_rounded_linear_is_bitwise_the_same_alone_and_beside_broken_rows(bits: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(70, 200), torch.randn(50, 200)
    together = torch.ops.turbomind.rounded_linear(x, weight, bits, 32)
    for first, last in [(0, 1), (1, 3), (3, 10), (10, 70)]:
        part = torch.ops.turbomind.rounded_linear(x[first:last].contiguous(), weight, bits, 32)
        assert torch.equal(part, together[first:last])
    x[5, 3], x[6, 100] = float("nan"), float("inf")
    broken = torch.ops.turbomind.rounded_linear(x, weight, bits, 32)
    clean = [row for row in range(70) if row not in (5, 6)]
    assert torch.equal(broken[clean], together[clean])
    assert broken[5].isnan().all()
    assert not broken[6].isfinite().any()


def test_not_a_number_stays_in_its_own_row() -> None:
    x = torch.ones(9, 40)
    x[4, 7] = float("nan")
    x[5, 7] = float("inf")
    y = torch.ops.turbomind.linear(x, torch.ones(12, 40), None)
    clean = [row for row in range(9) if row not in (4, 5)]
    assert torch.equal(y[clean], torch.full((7, 12), 40.0))
    assert y[4].isnan().all()


@pytest.mark.parametrize("size", [1, 7, 16, 49152])
def test_argmax_is_the_first_of_the_largest(size: int) -> None:
    torch.manual_seed(size)
    logits = torch.randn(size).mul(4).round()
    want = int((logits == logits.max()).nonzero()[0])
    assert _turbomind.argmax(logits.data_ptr(), size) == want
    logits[size // 2] = float("inf")
    assert _turbomind.argmax(logits.data_ptr(), size) == size // 2


def test_argmax_refuses_nan_and_a_row_that_allows_nothing() -> None:
    logits = torch.zeros(100)
    logits[63] = float("nan")
    assert _turbomind.argmax(logits.data_ptr(), 100) == -1
    logits[:] = float("-inf")
    assert _turbomind.argmax(logits.data_ptr(), 100) == -1
