"""Norms, activations and rotation against float64, over sizes that do and do not fill vectors."""

import pytest
import torch

from lmdeploy.turbomind import ops
from tests.kernels.reference import rotate_part

EPS = 2.0**-24


@pytest.mark.parametrize("size", [1, 15, 16, 576, 1001])
def test_rms_norm_agrees_with_float64(size: int) -> None:
    torch.manual_seed(size)
    x, weight = torch.randn(5, size) * 3, torch.randn(size)
    wide = x.double()
    exact = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5).double(), exact, rtol=size * EPS + 4 * EPS, atol=1e-30)


@pytest.mark.parametrize("size", [2, 15, 16, 576, 1001])
@pytest.mark.parametrize("has_bias", [True, False])
def test_layer_norm_agrees_with_float64_far_from_zero_too(size: int, has_bias: bool) -> None:
    torch.manual_seed(size)
    x = torch.randn(5, size) * 3 + torch.tensor([0.0, 1.0, -10.0, 100.0, 0.1])[:, None]
    weight, bias = torch.randn(size), torch.randn(size) if has_bias else None
    exact = torch.nn.functional.layer_norm(
        x.double(), (size,), weight.double(), None if bias is None else bias.double(), 1e-5
    )
    # The mean is off by a few roundings of the largest value, 100, beside a spread of 3.
    torch.testing.assert_close(ops.layer_norm(x, weight, bias, 1e-5).double(), exact, rtol=1e-5, atol=3e-5)


# GPT-OSS' function is written out in its model code; the others are PyTorch's own.
FUNCTIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
    "relu": torch.relu,
    "relu2": lambda v: torch.relu(v).square(),
}


@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.parametrize("size", [1, 16, 37, 1536])
def test_activations_agree_with_float64_from_tiny_to_huge_values(activation: str, size: int) -> None:
    torch.manual_seed(size)
    gate_up = torch.randn(4, 2 * size) * torch.tensor([0.01, 1.0, 30.0, 200.0])[:, None]
    gate, up = gate_up.double().chunk(2, dim=-1)
    plain = FUNCTIONS[activation](gate)
    # exp is within 2 ulp; gelu's error is relative to v, not to the result, which vanishes for negative v.
    bound = 20 * EPS * plain.abs() + (5e-7 * gate.abs() if "gelu" in activation else 0) + 1e-30
    assert ((ops.activate(gate.float(), activation, False).double() - plain).abs() <= bound).all()
    gated = ops.activate(gate_up, activation, True).double()
    assert ((gated - plain * up).abs() <= (bound * up.abs()) * 1.01 + 1e-30).all()


def test_the_clamped_swiglu_of_gpt_oss_agrees_with_float64() -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(6, 2 * 37) * 6
    gate, up = gate_up.double().chunk(2, dim=-1)
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    exact = (up + 1) * gate * torch.sigmoid(1.702 * gate)
    torch.testing.assert_close(ops.activate(gate_up, "clamped_swiglu", True).double(), exact, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("pairs", [1, 12, 20])
def test_rope_rotates_a_part_of_a_head_and_scales_all_of_it(pairs: int, is_interleaved: bool) -> None:
    torch.manual_seed(pairs)
    x, angle, factors = torch.randn(5, 3, 40), torch.rand(5, pairs) * 6, torch.rand(5)
    exact = rotate_part(x, angle, is_interleaved)
    plain = ops.rope(x, angle.cos(), angle.sin(), is_interleaved, None)
    torch.testing.assert_close(plain.double(), exact, rtol=1e-6, atol=1e-6)
    scaled = ops.rope(x, angle.cos(), angle.sin(), is_interleaved, factors)
    torch.testing.assert_close(scaled.double(), exact * factors.double()[:, None, None], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("scale", "softcap"), [(0.25, 0.0), (1.0, 30.0), (0.5, 5.0)])
def test_logits_are_scaled_and_capped(scale: float, softcap: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 1001) * 40
    exact = x.double() * scale
    if softcap:
        exact = softcap * torch.tanh(exact / softcap)
    torch.testing.assert_close(ops.scale_and_cap(x, scale, softcap).double(), exact, rtol=1e-6, atol=1e-5)
