"""Norm, rotation and gated activations against float64."""

import pytest
import torch

from lmdeploy.pytorch.kernels.gated_activation import gelu_and_mul, silu_and_mul
from lmdeploy.pytorch.kernels.rms_norm import rms_norm
from lmdeploy.pytorch.kernels.rotary import apply_rotary
from tests.kernels.reference import rotate_part

# Values near 1, once rounded to the type. (No bfloat16: Triton's interpreter cuts its last bits off.)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}


def assert_near(got: torch.Tensor, expected: torch.Tensor, atol: float, relative: float = 0.0) -> None:
    torch.testing.assert_close(got.double(), expected, atol=atol, rtol=relative)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rms_norm_is_of_the_sum_with_the_residual(
    dtype: torch.dtype, random: torch.Generator, device: torch.device
) -> None:
    x = torch.randn(3, 80, generator=random).to(device, dtype)[:, 8:]  # 72 channels of 80
    weight = torch.randn(72, generator=random).to(device, dtype)
    residual = torch.randn(3, 72, generator=random).to(device, dtype)

    def norm(values: torch.Tensor) -> torch.Tensor:
        values = values.double()
        return values / (values.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight.double()

    assert_near(rms_norm(x, weight, 1e-3), norm(x), 4 * TOLERANCE[dtype])
    total = x + residual
    got = rms_norm(x, weight, 1e-3, residual=residual)
    assert torch.equal(residual, total)
    assert_near(got, norm(total), 4 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("pairs", [16, 12])
def test_rotation_turns_the_first_channels_of_each_head(
    dtype: torch.dtype, is_interleaved: bool, pairs: int, random: torch.Generator, device: torch.device
) -> None:
    joined = torch.randn(3, 9 + 2 + 2, 32, generator=random).to(device, dtype)
    query, key, value = joined[:, :9], joined[:, 9:11], joined[:, 11:].clone()
    angle = torch.rand(3, pairs, generator=random).to(device) * 6
    expected = [rotate_part(x, angle, is_interleaved) for x in (query, key)]
    apply_rotary(query, key, angle.cos(), angle.sin(), is_interleaved=is_interleaved)
    assert_near(query, expected[0], TOLERANCE[dtype])
    assert_near(key, expected[1], TOLERANCE[dtype])
    assert torch.equal(joined[:, 11:], value)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # of a closed gate, in the interpreter
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_gates_are_activated_and_multiplied(dtype: torch.dtype, random: torch.Generator, device: torch.device) -> None:
    x = torch.randn(2, 2 * 1100, generator=random).to(device, dtype)
    x[0, 0], x[0, 1] = 80.0, -80.0  # saturated gates
    gate, up = x.double().chunk(2, -1)
    expected = torch.nn.functional.silu(gate) * up
    assert_near(silu_and_mul(x), expected, TOLERANCE[dtype], relative=TOLERANCE[dtype])
    expected = torch.nn.functional.gelu(gate, approximate="tanh") * up
    assert_near(gelu_and_mul(x), expected, TOLERANCE[dtype], relative=TOLERANCE[dtype])
