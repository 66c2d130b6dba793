"""Linear operators against float64, over shapes that do and do not fill vectors, slabs, tiles and splits."""

import pytest
import torch

from tests.kernels.device import Device
from tests.kernels.emulated_library import needs_emulation
from tests.kernels.linear_bounds import EPS, STEPS, bound_of, check, check_broken_rows, check_rows_are_alone
from tests.kernels.reference import round_activations, round_weight
from tests.kernels.weights import (
    SCALED,
    Weight,
    group_minima_weight,
    group_quantized_weight,
    make_weight,
    weight_of_kind,
)

KINDS = list(STEPS)
ALL_KINDS = [*KINDS, *SCALED]
FLOATS = ["float32", "bfloat16", "float16"]
SHAPES = [
    (1, 7, 8),
    (1, 33, 2208),  # on CUDA in splits, as 33 x 520 is
    (3, 130, 40),
    (9, 64, 520),
    (13, 50, 300),
    (16, 40, 64),
    (17, 50, 96),
    (33, 150, 520),
    (53, 96, 576),
    (70, 34, 100),
    (200, 40, 130),
]
ODD_SHAPES = [(1, 7, 5), (6, 129, 100), (20, 33, 31), (200, 33, 31)]
# Groups of 128 inputs: Hopper's kernels/cuda/ring. The emulation has four multiprocessors, so that a block gets several
# items, and some share inputs.
RING_KINDS = ["int8", "int4", "int8 by output", "float8 by output", "float8 by wide block"]
RING_SHAPES = [
    (rows, *shape)
    for rows in (1, 8, 9, 17, 50, 65, 130, 191)
    for shape in ((33, 1100), (200, 300), (1300, 256), (20, 100))
]
CASES = [(shape, kind, 32) for shape in SHAPES for kind in ALL_KINDS]
CASES += [(shape, kind, 0) for shape in ODD_SHAPES for kind in FLOATS]
CASES += [(shape, kind, 128) for shape in RING_SHAPES for kind in RING_KINDS]
# Rows, shape, group, bits, and whether inputs have an order of their own.
CODES = [
    (rows, tuple(shape), group, bits, False)
    for rows, *shape in ((1, 16, 32), (2, 7, 33), (12, 70, 300), (40, 33, 100), (200, 40, 130))
    for group in (8, 24, 32, 64, 128)
    for bits in (8, 4)
]
CODES += [  # on CUDA in splits that begin and end within groups
    (rows, (37, 2236), group, bits, False) for rows in (2, 9, 33, 100) for group in (24, 64, 128) for bits in (8, 4)
]
CODES += [(rows, (24, 96), 32, bits, True) for rows in (3, 20, 200) for bits in (8, 4)]
CODES += [
    (rows, (77, 900), group, bits, shuffles)
    for rows in (2, 20, 70)
    for group in (128, 256)
    for bits in (8, 4)
    for shuffles in (False, True)
]
TILES = [  # of any number of rows, which meet outputs of several blocks
    (rows, (300, 256), group, bits, shuffles)
    for rows in (17, 31, 32, 33, 64, 65, 100, 128, 191)
    for bits, group in ((4, 32), (4, 64), (4, 128), (8, 32), (8, 128))
    for shuffles in (False, True)
]
TILES += [(rows, (24, 4096), 64, bits, False) for rows, bits in ((20, 4), (40, 4), (40, 8))]  # split, on any device


@pytest.mark.parametrize(("shape", "kind", "group"), CASES)
def test_linear_is_within_the_stated_bound_of_float64(
    device: Device, shape: tuple[int, int, int], kind: str, group: int
) -> None:
    rows, out_features, in_features = shape
    torch.manual_seed(rows)
    x, bias = torch.randn(rows, in_features), torch.randn(out_features)
    size = 1e-3 if kind in SCALED and group != 128 else 1
    weight = weight_of_kind(device, torch.randn(out_features, in_features) * size, kind, group, bias)
    check(device, device.linear(weight, x), x, weight, kind)


def check_codes(device: Device, rows: int, shape: tuple[int, int], group: int, bits: int, shuffles: bool) -> None:
    torch.manual_seed(rows + group)
    x = torch.randn(rows, shape[1])
    weight = group_quantized_weight(device, shape, bits, group, shuffles_inputs=shuffles)
    check(device, device.linear(weight, x), x, weight, f"int{bits}")


@pytest.mark.parametrize(("rows", "shape", "group", "bits", "shuffles"), CODES)
def test_codes_with_zero_points_of_any_group_stand_for_their_numbers(
    device: Device, rows: int, shape: tuple[int, int], group: int, bits: int, shuffles: bool
) -> None:
    check_codes(device, rows, shape, group, bits, shuffles)


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize(
    ("rows", "in_features", "group"),
    [*((rows, 64, 32) for rows in (1, 12, 30, 200)), *((rows, 1024, 128) for rows in (3, 40, 100))],
)
def test_a_result_is_added_and_the_same_each_time(
    device: Device, rows: int, in_features: int, group: int, kind: str
) -> None:
    torch.manual_seed(rows)
    x, before, bias = torch.randn(rows, in_features), torch.randn(rows, 45), torch.randn(45)
    weight = weight_of_kind(device, torch.randn(45, in_features), kind, group, bias)
    y = device.linear(weight, x, before)
    check(device, y, x, weight, kind, before)
    assert torch.equal(y, device.linear(weight, x, before))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e-3, 1e5])
@pytest.mark.parametrize("rows", [2, 30, 200])
def test_small_and_large_inputs_keep_their_precision(device: Device, rows: int, size: float, kind: str) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, 64) * size
    weight = make_weight(device, torch.randn(20, 64), kind, 32)
    y = device.linear(weight, x)
    check(device, y, x, weight, kind)
    exact = x.double() @ weight.exact.T
    rounds_to_bytes = not device.is_cuda and kind.startswith("int")
    assert (y.double() - exact).norm() / exact.norm() < (2.0**-7 if rounds_to_bytes else 2.0**-9)


@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("rows", [9, 40, 200])
def test_not_a_number_stays_in_its_own_row(device: Device, rows: int, kind: str) -> None:
    torch.manual_seed(rows)
    check_broken_rows(device, weight_of_kind(device, torch.randn(12, 40), kind, 8), torch.randn(rows, 40))


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize(
    ("rows", "heads", "out_features", "in_features"), [(1, 3, 20, 40), (9, 2, 33, 17), (60, 4, 33, 64)]
)
@pytest.mark.parametrize("gap", [0, 3, 4])
def test_each_head_has_a_map_of_its_own(
    device: Device, rows: int, heads: int, out_features: int, in_features: int, gap: int, kind: str
) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, heads, in_features + gap)
    values = torch.randn(heads, out_features, in_features)
    weight = make_weight(device, values.flatten(0, 1), kind)
    y = torch.empty(rows, heads, out_features)
    device.native.head_linear(weight.native, x[..., :in_features], y)
    for head in range(heads):
        head_rows = slice(head * out_features, (head + 1) * out_features)
        inputs = x[:, head, :in_features].contiguous()
        check(device, y[:, head], inputs, Weight(None, weight.exact[head_rows], weight.bias[head_rows]), kind)
    for row in range(0 if device.is_cuda else rows):
        alone = torch.empty(1, heads, out_features)
        device.native.head_linear(weight.native, x[row : row + 1, :, :in_features], alone)
        assert torch.equal(alone[0], y[row])


# ---- what tiles of rows on CUDA promise ----


@pytest.mark.parametrize(("rows", "shape", "group", "bits", "shuffles"), TILES)
def test_tiles_of_codes_stand_for_their_numbers(
    cuda: Device, rows: int, shape: tuple[int, int], group: int, bits: int, shuffles: bool
) -> None:
    check_codes(cuda, rows, shape, group, bits, shuffles)


# ---- what the CPU promises beyond ----


# Groups are made of whole vectors of codes.
UNITS = {8: 8, 4: 8, 6: 16, 5: 32}


def bits_and_groups(*groups: int) -> pytest.MarkDecorator:
    """Parametrize with bits of codes and those of the groups that they have."""
    return pytest.mark.parametrize(
        ("bits", "group"), [(bits, group) for bits, unit in UNITS.items() for group in groups if group % unit == 0]
    )


# Where products of bytes are added up in 16 bits, these sums are the largest.
@pytest.mark.parametrize("rows", [1, 5, 40])
@bits_and_groups(8, 32, 40, 256)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_codes_are_added_up_exactly(cpu: Device, sign: float, bits: int, group: int, rows: int) -> None:
    shape = (20, 4 * group)
    quantized = torch.full(shape, 2**bits - 1, dtype=torch.uint8)
    weight, sizes = group_minima_weight(cpu, shape, bits, group, quantized)
    x = torch.full((rows, shape[1]), sign)  # each rounded to a code of 127
    exact = x.double() @ weight.exact.T
    error = (cpu.linear(weight, x).double() - exact).abs()
    assert (error <= 1e-6 * (x.double().abs() @ sizes.T)).all()


# Fewer inputs than a vector holds, as many, a part of one; groups of tiles that are not full; blocks.
@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize(
    ("rows", "out_features", "in_features"),
    [(50, 70, 600), (190, 70, 600), (150, 16, 1), (130, 49, 256), (140, 100, 511), (900, 34, 40)],
)
def test_a_row_is_bitwise_the_same_alone_and_among_others(
    cpu: Device, rows: int, out_features: int, in_features: int, kind: str
) -> None:
    torch.manual_seed(rows)
    weight = weight_of_kind(cpu, torch.randn(out_features, in_features), kind, 32, torch.randn(out_features))
    check_rows_are_alone(cpu, weight, torch.randn(rows, in_features))


# Tiles that are multiplied three at a time with four rows, and the rest of either.
@bits_and_groups(32, 256)
@pytest.mark.parametrize("kind", ["zeros", "minima", "shared minima"])
def test_a_row_of_codes_with_zeros_or_minima_is_bitwise_the_same_alone_and_among_others(
    cpu: Device, kind: str, group: int, bits: int
) -> None:
    torch.manual_seed(group + bits)
    shape = (130, 512)
    if "minima" in kind:
        weight, _ = group_minima_weight(cpu, shape, bits, group, scale_groups=2 if "shared" in kind else 1)
    else:
        weight = group_quantized_weight(cpu, shape, bits, group, shuffles_inputs=False)
    check_rows_are_alone(cpu, weight, torch.randn(61, shape[1]))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    ("rows", "out_features", "in_features"), [(1, 16, 32), (2, 7, 40), (9, 40, 576), (50, 33, 100), (3, 130, 1536)]
)
@pytest.mark.parametrize("group", [24, 32, 64, 256])
def test_a_rounded_linear_is_the_product_of_the_rounded_values(
    cpu: Device, rows: int, out_features: int, in_features: int, group: int, bits: int
) -> None:
    torch.manual_seed(rows + bits)
    x, weight = torch.randn(rows, in_features) * torch.rand(rows, 1), torch.randn(out_features, in_features)
    y = cpu.linear(make_weight(cpu, weight, f"int{bits}", group), x).double()
    quantized_x, quantized_weight = round_activations(x, group), round_weight(weight, bits, group)
    exact = quantized_x @ quantized_weight.T
    # Exact inside a group; the sum over groups is float32. A value on the edge between two codes may fall either way.
    edge = quantized_x.abs().amax() / 127 * quantized_weight.abs().amax() * 2
    bound = 8 * EPS * (quantized_x.abs() @ quantized_weight.abs().T) + 1e-6
    assert ((y - exact).abs() <= bound + edge).all()
    assert ((y - exact).abs() <= bound).double().mean() > 0.98


@pytest.mark.parametrize(("bits", "limit"), [(8, 0.008), (4, 0.09)])
def test_rounding_keeps_the_product_close_to_the_exact_one(cpu: Device, bits: int, limit: float) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(20, 1024), torch.randn(200, 1024)
    exact = x.double() @ weight.double().T
    y = cpu.linear(make_weight(cpu, weight, f"int{bits}", 32), x).double()
    assert (y - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt() < limit


# Several groups share a half in K-quants.
@bits_and_groups(16, 32)
@pytest.mark.parametrize("scale_groups", [1, 2])
@pytest.mark.parametrize(
    ("rows", "out_features", "in_features"), [(1, 16, 64), (2, 7, 96), (9, 40, 576), (50, 70, 160)]
)
def test_codes_with_minima_are_multiplied_as_the_numbers_they_stand_for(
    cpu: Device, rows: int, out_features: int, in_features: int, scale_groups: int, group: int, bits: int
) -> None:
    torch.manual_seed(rows + group)
    in_features *= scale_groups
    x = torch.randn(rows, in_features)
    weight, sizes = group_minima_weight(cpu, (out_features, in_features), bits, group, scale_groups=scale_groups)
    rounded = round_activations(x, group)
    difference = (cpu.linear(weight, x).double() - rounded @ weight.exact.T).abs()
    # As above: sums over groups are float32, and values on an edge between two codes may fall either way.
    bound = 8 * EPS * (rounded.abs() @ sizes.T) + 1e-6
    assert (difference <= bound + rounded.abs().amax() / 127 * sizes.amax() * 2).all()
    assert (difference <= bound).double().mean() > 0.98


# Formats of prepared rows: none, pairs of bfloat16 or tiles, codes, or codes of reordered inputs.
MADE = ["float32", "bfloat16", "int8", "codes, shuffled"]


def _of_kind(device: Device, shape: tuple[int, int], kind: str) -> Weight:
    if kind == "codes, shuffled":
        return group_quantized_weight(device, shape, 4, 32, shuffles_inputs=True)
    return weight_of_kind(device, torch.randn(shape), kind, 32)


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("rows", [1, 9, 70, 200])
def test_rows_normed_while_they_are_read_come_to_the_bits_of_those_normed_before(
    device: Device, rows: int, kind: str
) -> None:
    torch.manual_seed(rows)
    x, scale = torch.randn(rows, 96), torch.randn(96)
    weight = _of_kind(device, (40, 96), kind)
    expected = device.linear(weight, device.rms_norm(x, scale, 1e-5))
    assert torch.equal(device.linear_of_norms(weight, x, scale, 1e-5), expected)


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("rows", [1, 9, 70, 200])
def test_gated_rows_made_while_they_are_read_come_to_the_bits_of_those_made_before(
    device: Device, rows: int, kind: str
) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, 2 * 96)
    weight = _of_kind(device, (40, 96), kind)
    expected = device.linear(weight, device.activate(x, "silu", is_gated=True))
    assert torch.equal(device.linear_of_gates(weight, x, "silu"), expected)


@pytest.mark.parametrize(
    "kind", ["bfloat16", "float16", "int8", "int4", "codes, shuffled", "int8 by output", "float8 by tensor"]
)
@pytest.mark.parametrize(("rows", "size"), [(18, 1100), (194, 1032)])  # which are no whole groups
def test_long_rows_made_while_they_are_rounded_come_to_the_same_bits(
    cuda: Device, rows: int, size: int, kind: str
) -> None:
    torch.manual_seed(rows)
    x, scale, bias = torch.randn(rows, 2 * size), torch.randn(size), torch.randn(size)
    weight = _of_kind(cuda, (20, size), kind)
    gated = cuda.linear(weight, cuda.activate(x, "gelu_tanh", is_gated=True))
    assert torch.equal(cuda.linear_of_gates(weight, x, "gelu_tanh"), gated)
    x = x[:, :size].contiguous()
    normed = cuda.linear(weight, cuda.layer_norm(x, scale, bias, 1e-5))
    assert torch.equal(cuda.linear_of_norms(weight, x, scale, 1e-5, bias), normed)


# ---- a gated MLP as one operator: on CUDA many rows pass between its linear layers in 16 bits ----

HIDDEN = 96
SLOPE = 1.1  # at most, of SiLU
# Of what passes between, relative and absolute (kernels/cuda/linear/linear.h).
NARROW = {"float32": (0.0, 0.0), "float16": (2.0**-11, 2.0**-21), "int4": (2.0**-11, 2.0**-21)}
BFLOAT16 = (2.0**-9, 0.0)


def make_mlp(device: Device, kind: str, size: int, *, has_bias: bool) -> tuple[Weight, Weight]:
    """Return the weights of gate and up, and of down."""
    shapes = [(2 * size, HIDDEN), (48, size)]
    up, down = (
        weight_of_kind(
            device, torch.randn(shape) * shape[1] ** -0.5, kind, 32, torch.randn(shape[0]) if has_bias else None
        )
        for shape in shapes
    )
    return up, down


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "int4", "int8 by output", "float8 by tensor"])
@pytest.mark.parametrize(
    ("rows", "size", "has_bias"), [(3, 128, True), (40, 128, False), (194, 128, True), (194, 100, False)]
)
@pytest.mark.parametrize("adds", [False, True])
def test_a_gated_mlp_is_within_what_its_roundings_explain(
    device: Device, rows: int, size: int, has_bias: bool, adds: bool, kind: str
) -> None:
    torch.manual_seed(rows)
    up, down = make_mlp(device, kind, size, has_bias=has_bias)
    x, before = torch.randn(rows, HIDDEN), torch.randn(rows, 48) if adds else None
    y = device.gated_mlp(up, "silu", down, x, before).double()

    sums = x.double() @ up.exact.T
    relative, absolute = NARROW.get(kind, BFLOAT16)
    of_sums = bound_of(device, x.double(), up, kind) * (1 + relative) + relative * sums.abs() + absolute
    gate, value = (sums + up.bias).chunk(2, -1)
    of_gate, of_value = of_sums.chunk(2, -1)
    silu = torch.nn.functional.silu(gate)
    between = silu * value
    of_between = SLOPE * of_gate * (value.abs() + of_value) + silu.abs() * of_value + 2.0**-21 * between.abs()
    exact = between @ down.exact.T + down.bias + (0 if before is None else before)
    bound = of_between @ down.exact.abs().T + bound_of(device, between.abs() + of_between, down, kind, before)
    error = (y - exact).abs()
    assert (error <= bound).all(), f"{(error / bound).max():.2f} of the bound"


@needs_emulation
@pytest.mark.parametrize(("kind", "dtype"), [("bfloat16", torch.bfloat16), ("float16", torch.float16)])
def test_many_rows_pass_between_the_layers_in_16_bits_and_without_the_bias(
    cuda: Device, kind: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(5)
    up, down = make_mlp(cuda, kind, 128, has_bias=True)
    x = torch.randn(20, HIDDEN)
    alone = make_weight(cuda, up.exact.float(), kind)
    scale = 16 if dtype == torch.float16 else 1
    narrow = (cuda.linear(alone, x) / scale).to(dtype).float() * scale
    expected = cuda.linear_of_gates(down, narrow + up.bias.float(), "gelu_tanh")
    assert torch.equal(cuda.gated_mlp(up, "gelu_tanh", down, x), expected)


@pytest.mark.parametrize("kind", ["int8 by output", "float8 by output"])
@pytest.mark.parametrize("rows", [3, 70])
def test_scales_of_outputs_make_groups_of_any_size_one_product(device: Device, rows: int, kind: str) -> None:
    torch.manual_seed(rows)
    x, w = torch.randn(rows, 1024), torch.randn(45, 1024)
    results = [device.linear(weight_of_kind(device, w, kind, group), x) for group in (32, 128)]
    assert torch.equal(*results)
