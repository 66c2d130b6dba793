"""Linear layers of quantized weights against float64 products of what the codes stand for."""

import pytest
import torch

from lmdeploy.pytorch.kernels.awq_linear import awq_linear
from lmdeploy.pytorch.kernels.fp8_linear import fp8_linear, quantize_rows_fp8
from lmdeploy.pytorch.kernels.int8_linear import int8_linear, quantize_rows_int8

NIBBLE = (0, 4, 1, 5, 2, 6, 3, 7)  # where a word of AWQ keeps outputs 0 to 7


def test_int8_rows_are_rounded_to_their_largest_and_products_are_exact(
    random: torch.Generator, device: torch.device
) -> None:
    x = torch.randn(5, 200, generator=random).to(device)
    x[1] *= 1000
    x[2] = 0
    quantized, scales = quantize_rows_int8(x)
    largest = x.abs().amax(-1)
    assert scales.cpu() == pytest.approx(largest.cpu() / 127)
    assert quantized.int().abs().amax(-1).tolist() == [127, 127, 0, 127, 127]
    # A value in the middle of two codes may go to either.
    assert ((quantized.double() * scales.double()[:, None] - x).abs() <= scales.double()[:, None] * 0.5001).all()

    weight = torch.randint(-128, 128, (70, 200), generator=random, dtype=torch.int8).to(device)
    weight_scales = torch.rand(70, generator=random).to(device) / 100
    bias = torch.randn(70, generator=random).to(device)
    product = quantized.double() @ weight.double().T * scales.double()[:, None] * weight_scales.double()
    for given in (None, bias):
        got = int8_linear(quantized, scales, weight, weight_scales, given, dtype=torch.float32)
        expected = product if given is None else product + given.double()
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


def test_fp8_blocks_have_scales_of_their_own(random: torch.Generator, device: torch.device) -> None:
    if device.type == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no e4m3 type: compute capability 8.9 is needed")
    x = torch.randn(3, 200, generator=random).to(device)
    x[1, :128] *= 1000
    x[2] = 0
    quantized, scales = quantize_rows_fp8(x)
    assert scales.shape == (3, 2)
    spread = scales.double().repeat_interleave(128, 1)[:, :200]
    meant = quantized.double() * spread
    # e4m3 has 3 bits after the first, and subnormals of 2^-9.
    is_near = (meant - x).abs() <= x.abs().double() / 16 + spread * 2**-10
    if device.type == "cpu":
        # Triton's interpreter loses the carry of a magnitude that is rounded up to a power of two: 127 becomes 64.
        nearest = (x / spread).to(torch.float8_e4m3fn).double().abs()
        is_near |= (nearest > x.abs() / spread) & (torch.frexp(nearest).mantissa == 0.5)
    assert is_near.all()

    weight = (torch.randn(150, 200, generator=random) * 50).to(torch.float8_e4m3fn).to(device)
    weight_scales = torch.rand(2, 2, generator=random).to(device) / 100
    bias = torch.randn(150, generator=random).to(device)
    blocks = weight_scales.double().repeat_interleave(128, 0)[:150].repeat_interleave(128, 1)[:, :200]
    expected = meant @ (weight.double() * blocks).T + bias.double()
    got = fp8_linear(quantized, scales, weight, weight_scales, bias, dtype=torch.float32)
    # Tensor cores keep fewer bits of a sum than float32.
    torch.testing.assert_close(got.double(), expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def pack(values: torch.Tensor) -> torch.Tensor:
    """Pack codes ``[inputs, outputs]`` of 4 bits into int32 words as AWQ orders them."""
    words = torch.zeros(values.shape[0], values.shape[1] // 8, dtype=torch.int64)
    for output, nibble in enumerate(NIBBLE):
        words |= values[:, output::8].long() << 4 * nibble
    return torch.where(words >= 2**31, words - 2**32, words).int()


@pytest.mark.parametrize("group", [32, 48])
def test_awq_weights_are_codes_minus_zeros_times_scales(
    group: int, random: torch.Generator, device: torch.device
) -> None:
    rows, inputs, outputs = 3, 96, 72
    quantized = torch.randint(0, 16, (inputs, outputs), generator=random)
    zeros = torch.randint(0, 16, (inputs // group, outputs), generator=random)
    scales = torch.rand(inputs // group, outputs, generator=random).to(torch.float16) / 10
    x = torch.randn(rows, inputs, generator=random)
    bias = torch.randn(outputs, generator=random)
    weight = (quantized - zeros.repeat_interleave(group, 0)) * scales.double().repeat_interleave(group, 0)
    got = awq_linear(*(t.to(device) for t in (x, pack(quantized), pack(zeros), scales, bias)))
    assert got.double().cpu() == pytest.approx(x.double() @ weight + bias.double(), abs=1e-4)


def test_a_group_that_no_tile_divides_is_refused(device: torch.device) -> None:
    x, words = torch.zeros(1, 24, device=device), torch.zeros(24, 1, dtype=torch.int32, device=device)
    with pytest.raises(ValueError, match="multiple of 16, got 12"):
        awq_linear(x, words, words[:2], torch.ones(2, 8, device=device))
