"""Norms, activations, rotations and copies against float64, over sizes that do and do not fill vectors and blocks."""

import pytest
import torch

from lmdeploy.turbomind.spec.parts import ACTIVATIONS
from tests.kernels.device import Device
from tests.kernels.reference import rotate_part
from tests.kernels.weights import make_weight

EPS = 2.0**-24
# On CUDA one warp a row up to 1024, a block beyond; vectors of four where the size is a multiple of it.
NORM_SIZES = [1, 2, 15, 16, 576, 1001, 1028, 2049]


@pytest.mark.parametrize("size", NORM_SIZES)
def test_rms_norm_agrees_with_float64(device: Device, size: int) -> None:
    torch.manual_seed(size)
    x, weight = torch.randn(5, size) * 3, torch.randn(size)
    doubles = x.double()
    exact = doubles / (doubles.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    out = device.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(out.double(), exact, rtol=size * EPS + 4 * EPS, atol=1e-30)


@pytest.mark.parametrize("size", NORM_SIZES[1:])
@pytest.mark.parametrize("has_bias", [True, False])
def test_layer_norm_agrees_with_float64_far_from_zero_too(device: Device, size: int, has_bias: bool) -> None:
    torch.manual_seed(size)
    x = torch.randn(5, size) * 3 + torch.tensor([0.0, 1.0, -10.0, 100.0, 0.1])[:, None]
    weight, bias = torch.randn(size), torch.randn(size) if has_bias else None
    exact_bias = None if bias is None else bias.double()
    exact = torch.nn.functional.layer_norm(x.double(), (size,), weight.double(), exact_bias, 1e-5)
    # The mean is off by a few roundings of the largest value, 100, with a spread of 3; by more where many are summed.
    out = device.layer_norm(x, weight, bias, 1e-5)
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=3e-5 if size <= 1001 else 6e-5)


@pytest.mark.parametrize(("first", "heads", "head_dim"), [(0, 3, 64), (4, 2, 18), (7, 5, 80), (0, 1, 1200)])
def test_heads_are_normed_one_by_one_and_what_lies_alongside_them_stays(
    device: Device, first: int, heads: int, head_dim: int
) -> None:
    torch.manual_seed(first)
    x, weight = torch.randn(6, first + heads * head_dim + 12), torch.randn(head_dim)
    end = first + heads * head_dim
    heads_of = x[:, first:end].double().view(6, heads, head_dim)
    normed = heads_of / (heads_of.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    out = device.norm_heads(x, first, heads, weight, 1e-6)
    torch.testing.assert_close(out[:, first:end].double(), normed.flatten(1), rtol=head_dim * EPS + 4 * EPS, atol=1e-30)
    assert torch.equal(out[:, :first], x[:, :first])
    assert torch.equal(out[:, end:], x[:, end:])


# GPT-OSS' function is written out in its model code; the others are PyTorch's own.
FUNCTIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda v: torch.nn.functional.gelu(v, approximate="tanh"),
    "relu": torch.relu,
    "relu2": lambda v: torch.relu(v).square(),
}
LIMITS = {"silu_7": 7, "silu_16": 16, "clamped_silu_10": 10}


@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.parametrize("size", [1, 16, 37, 1536])
def test_activations_agree_with_float64_from_tiny_to_huge_values(device: Device, activation: str, size: int) -> None:
    torch.manual_seed(size)
    gate_up = torch.randn(4, 2 * size) * torch.tensor([0.01, 1.0, 30.0, 200.0])[:, None]
    gate, up = gate_up.double().chunk(2, dim=-1)
    reference = FUNCTIONS[activation](gate)
    # exp is within 2 ulp; gelu's error is relative to v, not to the result, which vanishes for negative v.
    bound = 20 * EPS * reference.abs() + (5e-7 * gate.abs() if "gelu" in activation else 0) + 1e-30
    alone = device.activate(gate.float(), activation, is_gated=False)
    assert ((alone.double() - reference).abs() <= bound).all()
    gated = device.activate(gate_up, activation, is_gated=True)
    assert ((gated.double() - reference * up).abs() <= bound * up.abs() * 1.01 + 1e-30).all()


@pytest.mark.parametrize("size", [1, 37, 1536])
def test_xielu_agrees_with_float64(device: Device, size: int) -> None:
    torch.manual_seed(size)
    x = torch.randn(4, size) * torch.tensor([0.01, 1.0, 30.0, 200.0])[:, None]
    doubles, (positive, negative, linear) = x.double(), (0.8, 1.3, 0.5)
    high, low = doubles.clamp(min=0), doubles.clamp(max=0)
    exact = positive * high.square() + negative * (torch.expm1(low) - low) + linear * doubles
    # Sums of terms, each of which is within some roundings; exp(n) - 1 is off by roundings of 1.
    bound = 8 * EPS * (positive * high.square() + negative * (1 + low.abs()) + linear * doubles.abs())
    device.native.xielu((positive, negative, linear), x, 4, size, x)
    assert ((x.double() - exact).abs() <= bound).all()


def test_the_clamped_swiglu_of_gpt_oss_agrees_with_float64(device: Device) -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(6, 2 * 37) * 6
    gate, up = gate_up.double().chunk(2, dim=-1)
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    exact = (up + 1) * gate * torch.sigmoid(1.702 * gate)
    out = device.activate(gate_up, "clamped_swiglu", is_gated=True)
    torch.testing.assert_close(out.double(), exact, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("activation", LIMITS)
def test_bounded_silu_agrees_with_float64(device: Device, activation: str) -> None:
    torch.manual_seed(0)
    gate_up, limit = torch.randn(6, 2 * 37) * 16, LIMITS[activation]
    gate, up = gate_up.double().chunk(2, dim=-1)
    is_clamped = activation.startswith("clamped")  # in front of the function
    bent = torch.nn.functional.silu(gate.clamp(max=limit) if is_clamped else gate)
    exact = (bent if is_clamped else bent.clamp(max=limit)) * up.clamp(-limit, limit)
    out = device.activate(gate_up, activation, is_gated=True)
    torch.testing.assert_close(out.double(), exact, rtol=2e-6, atol=1e-30)


def test_the_logistic_function_agrees_with_float64(device: Device) -> None:
    x = torch.linspace(-80, 80, 333)[None]
    torch.testing.assert_close(device.apply("sigmoid", x).double(), torch.sigmoid(x.double()), rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_value_that_is_not_a_number_stays_so_and_spoils_no_other(device: Device, activation: str) -> None:
    x = torch.ones(2, 8)
    x[1, 2] = float("nan")
    bounded = device.apply("clamp", x, limit=2), device.apply("cap", x, limit=3)
    for out in (device.activate(x, activation, is_gated=False), *bounded):
        assert out.isnan().nonzero().tolist() == [[1, 2]]


@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("pairs", [1, 12, 20])
def test_rope_rotates_a_part_of_a_head_and_scales_all_of_it(device: Device, pairs: int, is_interleaved: bool) -> None:
    torch.manual_seed(pairs)
    x, angle, factors = torch.randn(5, 3, 40), torch.rand(5, pairs) * 6, torch.rand(5)
    exact = rotate_part(x, angle, is_interleaved)
    reference = device.rope(x, angle.cos(), angle.sin(), is_interleaved=is_interleaved)
    torch.testing.assert_close(reference.double(), exact, rtol=1e-6, atol=1e-6)
    scaled = device.rope(x, angle.cos(), angle.sin(), factors, is_interleaved=is_interleaved)
    torch.testing.assert_close(scaled.double(), exact * factors.double()[:, None, None], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sets", [None, [1, 0, 1, 1, 0]], ids=["one set", "two sets"])
def test_tables_of_rotations_are_exact_at_far_positions_too(device: Device, sets: list[int] | None) -> None:
    positions = torch.tensor([0, 1, 77, 131071, 1 << 20], dtype=torch.int32)
    exponents = torch.linspace(0, 1, 7).double()
    frequencies = torch.stack([10000.0**-exponents, 500000.0**-exponents]).float()
    chosen = frequencies[[0] * 5 if sets is None else sets]
    angles = (positions.float()[:, None] * chosen).double()  # a product of float32
    which = None if sets is None else torch.tensor(sets, dtype=torch.int32)
    cosine, sine = device.rope_table(positions, which, frequencies, 1.5)
    torch.testing.assert_close(cosine.double(), 1.5 * angles.cos(), rtol=0, atol=5e-7)
    torch.testing.assert_close(sine.double(), 1.5 * angles.sin(), rtol=0, atol=5e-7)


def test_a_position_of_several_numbers_turns_each_pair_by_its_own(device: Device) -> None:
    positions = torch.tensor([[0, 0, 0], [7, 900, 3], [131071, 5, 1 << 20]], dtype=torch.int32)
    axes = torch.tensor([0, 1, 2, 0, 1, 2, 0], dtype=torch.int32)
    frequencies = (10000.0 ** -torch.linspace(0, 1, 7).double()).float()
    angles = (positions[:, axes.long()].float() * frequencies).double()
    cosine, sine = device.rope_table(positions, None, frequencies[None], 1.0, axes)
    torch.testing.assert_close(cosine.double(), angles.cos(), rtol=0, atol=5e-7)
    torch.testing.assert_close(sine.double(), angles.sin(), rtol=0, atol=5e-7)


@pytest.mark.parametrize(("scale", "softcap"), [(0.25, 0.0), (1.0, 30.0), (0.5, 5.0)])
@pytest.mark.parametrize("size", [1000, 1001])
def test_logits_are_scaled_and_capped(device: Device, size: int, scale: float, softcap: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, size) * 40
    exact = x.double() * scale
    if softcap:
        exact = softcap * torch.tanh(exact / softcap)
    out = device.apply("cap" if softcap else "scale", x, scale=scale, limit=softcap)
    torch.testing.assert_close(out.double(), exact, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("size", [36, 37])
def test_sums_are_scaled_and_values_clamped(device: Device, size: int) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(3, size), torch.randn(3, size)
    scale = torch.tensor(0.3).double()
    out = device.add_scaled(0.3, x, y)
    torch.testing.assert_close(out.double(), y.double() + scale * x.double(), rtol=2 * EPS, atol=2 * EPS)
    assert torch.equal(device.apply("clamp", x, limit=0.7), x.clamp(-0.7, 0.7))


@pytest.mark.parametrize(("width", "head_dim"), [(24, 16), (24, 13), (21, 21)])
def test_heads_are_scaled_and_nothing_else_is(device: Device, width: int, head_dim: int) -> None:
    x, factors = torch.randn(5, 3, width), torch.randn(5)
    out = device.apply(
        "scale", device.apply("scale_rows", x, factors=factors, head_dim=head_dim), scale=0.3, head_dim=head_dim
    )
    scaled = x[..., :head_dim] * factors[:, None, None] * torch.tensor(0.3)
    assert torch.equal(out[..., :head_dim], scaled)
    assert torch.equal(out[..., head_dim:], x[..., head_dim:])


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
def test_rows_of_an_embedding_are_copied_and_scaled(device: Device, kind: str) -> None:
    table = make_weight(device, torch.randn(50, 300), kind)
    tokens = torch.tensor([3, 49, 0, 3], dtype=torch.int32)
    assert torch.equal(device.embed(table, tokens, 1.5), table.exact.float()[tokens.long()] * 1.5)


def test_rows_and_heads_are_copied(device: Device) -> None:
    x = torch.randn(9, 270)
    indices = torch.tensor([8, 0, 0, 4], dtype=torch.int32)
    assert torch.equal(device.gather_rows(x, indices), x[indices.long()])
    rows_kept = torch.tensor([5, 0, 8], dtype=torch.int32)
    scattered = device.scatter_rows(x[:3], rows_kept, torch.zeros(9, 270))
    assert torch.equal(scattered, torch.zeros(9, 270).index_copy(0, rows_kept.long(), x[:3]))
    added = device.scatter_rows(x[:3], rows_kept, x, accumulate=True)
    assert torch.equal(added, x.index_add(0, rows_kept.long(), x[:3]))
    heads = x.view(9, 3, 90)
    y = device.copy_heads(heads, torch.zeros(9, 3, 100))
    assert torch.equal(y[..., :90], heads)
    assert (y[..., 90:] == 0).all()
