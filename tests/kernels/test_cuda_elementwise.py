"""The element by element operators on CUDA against float64, over sizes that do and do not fill vectors and blocks."""

import numpy as np
import pytest
import torch

from tests.kernels.cuda_device import CudaModule
from tests.kernels.reference import rotate_part

EPS = 2.0**-24
# One warp a row up to 1024, a block beyond; vectors of four where the size is a multiple of it.
NORM_SIZES = [1, 15, 16, 576, 1001, 1028, 2049]


@pytest.mark.parametrize("size", NORM_SIZES)
def test_rms_norm_agrees_with_float64(cuda: CudaModule, size: int) -> None:
    torch.manual_seed(size)
    x, weight = torch.randn(5, size) * 3, torch.randn(size)
    wide = x.double()
    exact = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    out = torch.from_numpy(cuda.norm(x.numpy(), False, weight.numpy(), None, 1e-5))
    torch.testing.assert_close(out.double(), exact, rtol=size * EPS + 4 * EPS, atol=1e-30)


@pytest.mark.parametrize("size", NORM_SIZES[1:])
@pytest.mark.parametrize("has_bias", [True, False])
def test_layer_norm_agrees_with_float64_far_from_zero_too(cuda: CudaModule, size: int, has_bias: bool) -> None:
    torch.manual_seed(size)
    x = torch.randn(5, size) * 3 + torch.tensor([0.0, 1.0, -10.0, 100.0, 0.1])[:, None]
    weight, bias = torch.randn(size), torch.randn(size) if has_bias else None
    wide_bias = None if bias is None else bias.double()
    exact = torch.nn.functional.layer_norm(x.double(), (size,), weight.double(), wide_bias, 1e-5)
    out = torch.from_numpy(cuda.norm(x.numpy(), True, weight.numpy(), None if bias is None else bias.numpy(), 1e-5))
    # The mean is off by a few roundings of the largest value, 100, beside a spread of 3.
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize(("first", "heads", "head_dim"), [(0, 3, 64), (4, 2, 18), (7, 5, 80), (0, 1, 1200)])
def test_heads_are_normed_one_by_one_and_what_lies_beside_them_stays(
    cuda: CudaModule, first: int, heads: int, head_dim: int
) -> None:
    torch.manual_seed(first)
    x, weight = torch.randn(6, first + heads * head_dim + 12), torch.randn(head_dim)
    end = first + heads * head_dim
    own = x[:, first:end].double().view(6, heads, head_dim)
    normed = own / (own.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    out = torch.from_numpy(cuda.norm_heads(x.numpy(), first, heads, head_dim, False, weight.numpy(), 1e-6))
    torch.testing.assert_close(out[:, first:end].double(), normed.flatten(1), rtol=head_dim * EPS + 4 * EPS, atol=1e-30)
    assert np.array_equal(out[:, :first], x[:, :first])
    assert np.array_equal(out[:, end:], x[:, end:])


# Numbered as kernels/activation.h numbers them.
FUNCTIONS = {
    0: torch.nn.functional.silu,
    1: torch.nn.functional.gelu,
    2: lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
    3: torch.relu,
    4: lambda v: torch.relu(v).square(),
}


@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.parametrize("size", [1, 16, 37, 1536])
def test_activations_agree_with_float64_from_tiny_to_huge_values(cuda: CudaModule, activation: int, size: int) -> None:
    torch.manual_seed(size)
    gate_up = torch.randn(4, 2 * size) * torch.tensor([0.01, 1.0, 30.0, 200.0])[:, None]
    gate, up = gate_up.double().chunk(2, dim=-1)
    plain = FUNCTIONS[activation](gate)
    empty = np.empty((4, size), np.float32)
    # exp is within 2 ulp; gelu's error is relative to v, not to the result, which vanishes for negative v.
    bound = 20 * EPS * plain.abs() + (5e-7 * gate.abs() if activation in (1, 2) else 0) + 1e-30
    alone = torch.from_numpy(cuda.activate(gate.float().contiguous().numpy(), activation, False, empty))
    assert ((alone.double() - plain).abs() <= bound).all()
    gated = torch.from_numpy(cuda.activate(gate_up.numpy(), activation, True, empty))
    assert ((gated.double() - plain * up).abs() <= bound * up.abs() * 1.01 + 1e-30).all()


def test_the_clamped_swiglu_of_gpt_oss_agrees_with_float64(cuda: CudaModule) -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(6, 2 * 37) * 6
    gate, up = gate_up.double().chunk(2, dim=-1)
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    exact = (up + 1) * gate * torch.sigmoid(1.702 * gate)
    out = torch.from_numpy(cuda.activate(gate_up.numpy(), 5, True, np.empty((6, 37), np.float32)))
    torch.testing.assert_close(out.double(), exact, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("activation", [0, 1, 2, 3, 4, 5])
def test_a_value_that_is_not_a_number_stays_so_and_spoils_no_other(cuda: CudaModule, activation: int) -> None:
    x = np.ones((2, 8), np.float32)
    x[1, 2] = np.nan
    empty = np.empty((2, 8), np.float32)
    for out in (cuda.activate(x, activation, False, empty), cuda.clamp(2.0, x), cuda.scale_and_cap(x, 1.0, 3.0)):
        assert np.isnan(out).nonzero() == (np.array([1]), np.array([2]))


@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("pairs", [1, 12, 20])
def test_rope_rotates_a_part_of_a_head_and_scales_all_of_it(cuda: CudaModule, pairs: int, is_interleaved: bool) -> None:
    torch.manual_seed(pairs)
    x, angle, factors = torch.randn(5, 3, 40), torch.rand(5, pairs) * 6, torch.rand(5)
    exact = rotate_part(x, angle, is_interleaved)
    arguments = (x.numpy(), angle.cos().numpy(), angle.sin().numpy(), is_interleaved)
    plain = torch.from_numpy(cuda.rope(*arguments, None))
    torch.testing.assert_close(plain.double(), exact, rtol=1e-6, atol=1e-6)
    scaled = torch.from_numpy(cuda.rope(*arguments, factors.numpy()))
    torch.testing.assert_close(scaled.double(), exact * factors.double()[:, None, None], rtol=1e-6, atol=1e-6)


def test_tables_of_rotations_are_exact_at_far_positions_too(cuda: CudaModule) -> None:
    positions = np.array([0, 1, 77, 131071, 1 << 20], np.int32)
    frequencies = np.stack([10000.0 ** -np.linspace(0, 1, 7), 500000.0 ** -np.linspace(0, 1, 7)]).astype(np.float32)
    for sets in (None, np.array([1, 0, 1, 1, 0], np.int32)):
        chosen = frequencies[np.zeros(5, np.int32) if sets is None else sets]
        angles = (positions.astype(np.float32)[:, None] * chosen).astype(np.float64)  # a product of float32
        cosine, sine = cuda.rope_table(positions, sets, frequencies, 1.5, np.zeros((5, 7), np.float32))
        np.testing.assert_allclose(cosine, 1.5 * np.cos(angles), atol=5e-7)
        np.testing.assert_allclose(sine, 1.5 * np.sin(angles), atol=5e-7)


@pytest.mark.parametrize(("scale", "softcap"), [(0.25, 0.0), (1.0, 30.0), (0.5, 5.0)])
@pytest.mark.parametrize("size", [1000, 1001])
def test_logits_are_scaled_and_capped(cuda: CudaModule, size: int, scale: float, softcap: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, size) * 40
    exact = x.double() * scale
    if softcap:
        exact = softcap * torch.tanh(exact / softcap)
    out = torch.from_numpy(cuda.scale_and_cap(x.numpy(), scale, softcap))
    torch.testing.assert_close(out.double(), exact, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("size", [36, 37])
def test_sums_are_scaled_and_values_clamped(cuda: CudaModule, size: int) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(3, size), torch.randn(3, size)
    out = torch.from_numpy(cuda.add_scaled(0.3, x.numpy(), y.numpy()))
    scale = torch.tensor(0.3).double()
    torch.testing.assert_close(out.double(), y.double() + scale * x.double(), rtol=2 * EPS, atol=2 * EPS)
    assert torch.equal(torch.from_numpy(cuda.clamp(0.7, x.numpy())), x.clamp(-0.7, 0.7))
