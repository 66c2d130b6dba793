"""Products with weights of one byte a code, int8 and float8 (E4M3), against float64."""

import pytest
import torch

from lmdeploy import _turbomind
from lmdeploy.turbomind import ops as ops  # registers torch.ops.turbomind
from tests.kernels.reference import round_activations, scaled_values
from tests.kernels.test_kernels import EPS

SHAPES = [(1, 16, 32), (2, 7, 40), (9, 40, 576), (50, 33, 100), (3, 130, 1536), (13, 50, 300)]
BLOCKS = {"output": (1, 1 << 20), "tensor": (1 << 20, 1 << 20), "block 128": (128, 128), "block 24 x 40": (24, 40)}


def make_float8(out_features: int, in_features: int, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes over the whole range, subnormal ones among them, and scales of several magnitudes."""
    size = torch.exp(2 * torch.randn(out_features, in_features))
    codes = (torch.randn(out_features, in_features) * size).clamp(-448, 448).to(torch.float8_e4m3fn)
    grid = (-(-out_features // block[0]), -(-in_features // block[1]))
    return codes, torch.exp(torch.randn(grid) * 2 - 8)


def input_rounding() -> float:
    """Return the relative rounding of x that kernels/linear.h states for this instruction set."""
    return 2.0**-8 if _turbomind.current_isa() == "avx512bf16" else 0.0


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize(("rows", "out_features", "in_features"), SHAPES)
def test_a_float8_linear_is_within_the_stated_bound(rows: int, out_features: int, in_features: int, name: str) -> None:
    torch.manual_seed(rows)
    x, bias = torch.randn(rows, in_features), torch.randn(out_features)
    codes, scales = make_float8(out_features, in_features, BLOCKS[name])
    y = torch.ops.turbomind.scaled_linear(x, codes, scales, *BLOCKS[name], bias)
    exact_weight = scaled_values(codes, scales, BLOCKS[name])
    exact = x.double() @ exact_weight.T + bias.double()
    size = x.double().abs() @ exact_weight.abs().T
    bound = (input_rounding() + (in_features + 4) * EPS) * size + 2 * EPS * bias.double().abs()
    assert ((y.double() - exact).abs() <= bound).all()


def test_every_float8_code_is_widened_exactly() -> None:
    codes = torch.arange(256).to(torch.uint8).repeat(3, 1)
    is_number = (codes[0] & 0x7F) != 0x7F
    codes[:, ~is_number] = 0
    weight = codes.T.contiguous().view(torch.float8_e4m3fn)  # [256, 3]
    y = torch.ops.turbomind.scaled_linear(torch.eye(3), weight, torch.full((256, 1), 0.25), 1, 3)
    assert torch.equal(y, weight.float().T * 0.25)


@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize("block", [(1, 200), (16, 40)])
def test_a_code_that_is_no_number_spoils_its_output_alone(block: tuple[int, int], code: int) -> None:
    codes, scales = make_float8(40, 200, block)
    codes.view(torch.uint8)[17, 111] = code
    y = torch.ops.turbomind.scaled_linear(torch.zeros(5, 200), codes, scales, *block)
    assert y[:, 17].isnan().all()
    assert (y[:, [n for n in range(40) if n != 17]] == 0).all()


@pytest.mark.parametrize("name", ["output", "tensor"])
@pytest.mark.parametrize(("rows", "out_features", "in_features"), SHAPES)
def test_an_int8_linear_is_the_product_with_rounded_activations(
    rows: int, out_features: int, in_features: int, name: str
) -> None:
    torch.manual_seed(rows)
    x, bias = torch.randn(rows, in_features) * torch.rand(rows, 1), torch.randn(out_features)
    codes = torch.randint(-128, 128, (out_features, in_features), dtype=torch.int8)
    scales = torch.rand(out_features if name == "output" else 1, 1) * 1e-6  # less than half precision could hold
    y = torch.ops.turbomind.scaled_linear(x, codes, scales, *BLOCKS[name], bias).double()
    weight = scaled_values(codes, scales, BLOCKS[name])
    group = 32 if in_features == 32 else min(in_features, 64)
    rounded = round_activations(x, group)
    exact = rounded @ weight.T + bias.double()
    edge = rounded.abs().amax() / 127 * weight.abs().amax() * 2  # a value on the edge may fall either way
    bound = 8 * EPS * (rounded.abs() @ weight.abs().T + bias.double().abs()) + 1e-12
    assert ((y - exact).abs() <= bound + edge).all()
    assert ((y - exact).abs() <= bound).double().mean() > 0.98


def test_groups_of_activations_cost_no_more_than_a_scale_for_each_token() -> None:
    """The bound of linear.h; and, on average, a row's error with one scale for the row, as W8A8 is defined."""
    torch.manual_seed(3)
    x, codes = torch.randn(20, 1024), torch.randint(-127, 128, (200, 1024), dtype=torch.int8)
    x[:, 7] *= 30  # an outlier, as in a model
    scales = torch.rand(200, 1) * 0.01
    exact_weight = scaled_values(codes, scales, (1, 1024))
    exact = x.double() @ exact_weight.T
    error = torch.ops.turbomind.scaled_linear(x, codes, scales, 1, 1024).double() - exact
    groups = x.view(20, 8, 128).abs().amax(-1).double()
    bound = groups / 254 @ exact_weight.abs().view(200, 8, 128).sum(-1).T
    assert (error.abs() <= bound * (1 + 1e-4)).all()
    per_token = round_activations(x, 1024) @ exact_weight.T - exact
    assert error.square().mean() < per_token.square().mean() / 2


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_a_row_is_bitwise_the_same_alone_and_beside_broken_rows(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(70, 200)
    codes, scales = make_float8(50, 200, (1, 200))
    weight = codes if dtype == torch.float8_e4m3fn else torch.randint(-128, 128, (50, 200), dtype=torch.int8)

    def run(rows: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.turbomind.scaled_linear(rows.contiguous(), weight, scales, 1, 200)
        return y

    together = run(x)
    for first, last in [(0, 1), (1, 3), (3, 10), (10, 70)]:
        assert torch.equal(run(x[first:last]), together[first:last])
    x[5, 3], x[6, 100] = float("nan"), float("inf")
    broken = run(x)
    clean = [row for row in range(70) if row not in (5, 6)]
    assert torch.equal(broken[clean], together[clean])
    assert broken[5].isnan().all()
    assert not broken[6].isfinite().any()


def test_blocks_of_inputs_are_for_float8() -> None:
    with pytest.raises(ValueError, match="blocks of 128 inputs are not supported for I8 codes"):
        torch.ops.turbomind.scaled_linear(
            torch.ones(1, 256), torch.ones(16, 256, dtype=torch.int8), torch.ones(1, 2), 16, 128
        )
