"""Linear operators with weights of one byte a code and float32 scales, int8 and float8 (E4M3), against float64."""

import pytest
import torch

from tests.kernels.device import Device
from tests.kernels.linear_bounds import EPS, MANY_ROWS, check
from tests.kernels.reference import round_activations, scaled_values
from tests.kernels.weights import SCALED, quantized_weight, scaled_weight


@pytest.mark.parametrize("block", [(1, 1 << 20), (1 << 20, 1 << 20), (128, 128), (24, 40)])
@pytest.mark.parametrize(
    ("rows", "out_features", "in_features"), [(1, 16, 32), (9, 40, 576), (50, 33, 100), (3, 130, 1536)]
)
def test_codes_over_the_whole_range_with_scales_of_several_magnitudes_are_multiplied(
    device: Device, rows: int, out_features: int, in_features: int, block: tuple[int, int]
) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, in_features)
    weight = quantized_weight(device, *spread_float8(out_features, in_features, block), block)
    check(device, device.linear(weight, x), x, weight, "float8 by block")


def spread_float8(out_features: int, in_features: int, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes over the whole range, subnormal ones among them, and scales of several magnitudes."""
    size = torch.exp(2 * torch.randn(out_features, in_features))
    quantized = (torch.randn(out_features, in_features) * size).clamp(-448, 448).to(torch.float8_e4m3fn)
    grid = (-(-out_features // block[0]), -(-in_features // block[1]))
    return quantized, torch.exp(torch.randn(grid) * 2 - 8)


def test_every_float8_code_is_widened_exactly(device: Device) -> None:
    quantized = torch.arange(256).to(torch.uint8).repeat(8, 1)
    quantized[:, (quantized[0] & 0x7F) == 0x7F] = 0
    weight = quantized_weight(
        device, quantized.T.contiguous().view(torch.float8_e4m3fn), torch.full((256, 1), 0.25), (1, 8)
    )
    assert torch.equal(device.linear(weight, torch.eye(8)).double(), weight.exact.T)


@pytest.mark.parametrize("stored", [0x7F, 0xFF])
@pytest.mark.parametrize("rows", [3, 40, 200])
@pytest.mark.parametrize("block", [(1, 200), (16, 40)])
def test_a_code_that_is_no_number_spoils_its_output_alone(
    device: Device, rows: int, block: tuple[int, int], stored: int
) -> None:
    torch.manual_seed(1)
    quantized, scales = spread_float8(40, 200, block)
    quantized.view(torch.uint8)[17, 111] = stored
    y = device.linear(quantized_weight(device, quantized, scales, block), torch.randn(rows, 200))
    assert y[:, 17].isnan().all()
    assert y[:, [n for n in range(40) if n != 17]].isfinite().all()


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("size", [1e-6, 1e5])
@pytest.mark.parametrize("rows", [2, 30, 200])
def test_weights_of_any_size_keep_their_precision(device: Device, rows: int, size: float, kind: str) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, 64)
    weight = scaled_weight(device, torch.randn(20, 64) * size, kind)
    check(device, device.linear(weight, x), x, weight, kind)


def test_blocks_of_inputs_are_for_float8(device: Device) -> None:
    with pytest.raises(ValueError, match="blocks of 128 inputs are not supported for I8 codes"):
        quantized_weight(device, torch.ones(16, 256, dtype=torch.int8), torch.ones(1, 2), (16, 128))


# ---- what the CPU promises beyond ----


@pytest.mark.parametrize("block", [(1, 1 << 20), (1 << 20, 1 << 20)], ids=["by output", "by tensor"])
@pytest.mark.parametrize(
    ("rows", "out_features", "in_features"),
    [(1, 16, 32), (2, 7, 40), (9, 40, 576), (50, 33, 100), (3, 130, 1536), (13, 50, 300)],
)
def test_an_int8_linear_is_the_product_with_rounded_activations(
    cpu: Device, rows: int, out_features: int, in_features: int, block: tuple[int, int]
) -> None:
    torch.manual_seed(rows)
    x, bias = torch.randn(rows, in_features) * torch.rand(rows, 1), torch.randn(out_features)
    quantized = torch.randint(-128, 128, (out_features, in_features), dtype=torch.int8)
    scales = torch.rand(out_features if block[0] == 1 else 1, 1) * 1e-6  # less than half precision could hold
    y = cpu.linear(quantized_weight(cpu, quantized, scales, block, bias), x).double()
    weight = scaled_values(quantized, scales, block)
    group = 32 if in_features == 32 else min(in_features, 64)
    rounded = round_activations(x, group)
    exact = rounded @ weight.T + bias.double()
    edge = rounded.abs().amax() / 127 * weight.abs().amax() * 2  # a value on the edge may fall either way
    bound = 8 * EPS * (rounded.abs() @ weight.abs().T + bias.double().abs()) + 1e-12
    assert ((y - exact).abs() <= bound + edge).all()
    assert ((y - exact).abs() <= bound).double().mean() > 0.98


def test_groups_of_activations_cost_no_more_than_a_scale_for_each_token(cpu: Device) -> None:
    """The bound of linear.h; and, on average, a row's error with one scale for the row, as W8A8 is defined."""
    torch.manual_seed(3)
    x, quantized = torch.randn(20, 1024), torch.randint(-127, 128, (200, 1024), dtype=torch.int8)
    x[:, 7] *= 30  # an outlier, as in a model
    weight = quantized_weight(cpu, quantized, torch.rand(200, 1) * 0.01, (1, 1024))
    exact = x.double() @ weight.exact.T
    error = cpu.linear(weight, x).double() - exact
    groups = x.view(20, 8, 128).abs().amax(-1).double()
    bound = groups / 254 @ weight.exact.abs().view(200, 8, 128).sum(-1).T
    assert (error.abs() <= bound * (1 + 1e-4)).all()
    per_token = round_activations(x, 1024) @ weight.exact.T - exact
    assert error.square().mean() < per_token.square().mean() / 2


# ---- what CUDA promises beyond ----


def test_many_rows_of_int8_are_exact_products_of_rounded_rows(cuda: Device) -> None:
    torch.manual_seed(0)
    x = torch.randn(MANY_ROWS, 100) * torch.rand(MANY_ROWS, 1)
    weight = scaled_weight(cuda, torch.randn(40, 100), "int8 by output")
    scale = x.abs().amax(1, keepdim=True) / 127
    steps = (x * (1 / scale)).round()
    y = cuda.linear(weight, x).double()
    exact = (steps.double() * scale.double()) @ weight.exact.T
    # A value on the edge between two codes may fall either way.
    assert ((y - exact).abs() <= 4 * EPS * exact.abs() + 1e-9).double().mean() > 0.98


def test_many_rows_of_float8_are_products_of_rounded_rows(cuda: Device) -> None:
    torch.manual_seed(0)
    x = torch.randn(MANY_ROWS, 100) * torch.rand(MANY_ROWS, 1)
    weight = scaled_weight(cuda, torch.randn(40, 100), "float8 by output")
    scale = x.abs().amax(1, keepdim=True) / 448
    steps = (x * (1 / scale)).to(torch.float8_e4m3fn)
    y = cuda.linear(weight, x).double()
    rounded = steps.double() * scale.double()
    # cuBLASLt keeps fewer than float32's bits of a sum of float8 products on Hopper: 14 (DeepSeek-V3, 3.5.2).
    bound = 2.0**-13 * (rounded.abs() @ weight.exact.abs().T)
    assert ((y - rounded @ weight.exact.T).abs() <= bound).double().mean() > 0.98
