"""Products that cuBLASLt has no algorithm for are made by a kernel of ours, whatever their types: nothing fails.

The library is emulated here: it refuses every shape, and counts that.
"""

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from tests.kernels.device import Device
from tests.kernels.emulated_library import RIGHT, WRONG, library, needs_emulation
from tests.kernels.libraries.test_grouped_library import BLOCKS, make_layer, to_bfloat16
from tests.kernels.linear_bounds import STEPS, check
from tests.kernels.reference import round_to_float8
from tests.kernels.weights import SCALED, quantized_weight, weight_of_kind

pytestmark = needs_emulation

# Of 16 bits the library makes all, of codes those of many rows.
CASES = [
    *[(kind, rows) for kind in ("bfloat16", "float16") for rows in (1, 40)],
    ("float32", 33),
    *[(kind, 200) for kind in (*STEPS, *SCALED)],
]


@pytest.fixture
def rejected() -> Iterator[Device]:
    """The emulated device, whose library has no algorithm for anything."""
    with library("products", WRONG) as device:
        yield device
        assert device.module.library_launches("products") > 0


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("kind", "rows"), CASES)
def test_they_are_within_the_stated_bound_of_float64(kind: str, rows: int, adds: bool, rejected: Device) -> None:
    torch.manual_seed(rows)
    x, bias = torch.randn(rows, 200), torch.randn(70)
    weight = weight_of_kind(rejected, torch.randn(70, 200) * 1e-2, kind, 40, bias)
    before = torch.randn(rows, 70) if adds else None
    check(rejected, rejected.linear(weight, x, before), x, weight, kind, before)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_results_of_16_bits_pass_through_a_gated_mlp(kind: str, rejected: Device) -> None:
    torch.manual_seed(1)
    x = torch.randn(20, 64)
    up, down = (weight_of_kind(rejected, torch.randn(shape) * 0.1, kind) for shape in [(96, 64), (40, 48)])
    gate, linear = (x.double() @ up.exact.T).chunk(2, 1)
    expected = torch.nn.functional.silu(gate) * linear @ down.exact.T
    y = rejected.gated_mlp(up, "silu", down, x)
    assert (y - expected).norm() < 2.0**-7 * expected.norm()


@pytest.mark.parametrize(("block", "inputs"), [((128, 128), 320), ((1, 1 << 20), 384)], ids=["blocks", "rows"])
def test_scales_of_float8_are_applied(block: tuple[int, int], inputs: int, rejected: Device) -> None:
    torch.manual_seed(2)
    x = torch.randn(208, inputs)
    quantized = (torch.randn(48, inputs) * 50).clamp(-448, 448).to(torch.float8_e4m3fn)
    scales = torch.exp(torch.randn(-(-48 // block[0]), -(-inputs // block[1])) - 8)
    with library("scales", RIGHT) as device:
        device.module.set_library("products", WRONG)
        weight = quantized_weight(device, quantized, scales, block)
        y = device.linear(weight, x).double()
        assert device.module.library_launches("scales") == 0
    expected = round_to_float8(x, 128 if block[0] > 1 else inputs) @ weight.exact.T
    assert (y - expected).norm() < 3e-3 * expected.norm()


@pytest.mark.parametrize(("kind", "rows"), [("bfloat16", 90), (BLOCKS, 170)])
def test_experts_are_multiplied(kind: str, rows: int, rejected: Device, capfd: pytest.CaptureFixture[str]) -> None:
    with library("experts", RIGHT) as device:
        layer = make_layer(device, rows, kind)
        chosen, weights, y = layer.run(device)
        assert device.module.library_launches("experts") == 0
    assert "experts by an emulated library agrees with ours" in capfd.readouterr().err
    rounded = to_bfloat16 if kind == "bfloat16" else partial(round_to_float8, width=128)
    exact = layer.exact((chosen, weights), rounded)
    error = (y.double() - layer.before - exact).norm() / exact.norm()
    assert error < (5e-4 if kind == "bfloat16" else 5e-3)  # a number next to a border is rounded otherwise
