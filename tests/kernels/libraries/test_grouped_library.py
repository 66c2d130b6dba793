"""A library's products of experts: what surrounds its kernel, and that only one which agrees with ours is used.

The kernel itself is emulated here: a loop over the groups that a table on the device reports.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch

from tests.kernels.arguments import Router
from tests.kernels.device import Device
from tests.kernels.emulated_library import NONE, RIGHT, WRONG, library, needs_emulation
from tests.kernels.reference import round_to_float8
from tests.kernels.weights import SCALED, Weight, make_weight, scaled_weight

HIDDEN, SIZE = 64, 32
FLOAT8_HIDDEN, FLOAT8_SIZE = 144, 336  # blocks of 128 inputs, of which the last is not whole
FLOAT8_PRODUCTS = 3  # gate_up is laid out in two pieces of experts
BLOCKS, WHOLE = "float8 by wide block", "float8 by output"
EXPERTS, TOP_K = 5, 2
TRIAL, PRODUCTS = 1, 2  # launches of a self-check and of a layer

pytestmark = needs_emulation


@dataclass
class Layer:
    """Experts, and rows that go to them."""

    gate_up: list[Weight]
    down: list[Weight]
    x: torch.Tensor
    before: torch.Tensor
    logits: torch.Tensor

    def run(self, device: Device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the experts and weights of the rows, and the sum."""
        routed = device.route(Router(EXPERTS, TOP_K, normalize=True), self.logits)
        y = device.add_experts(self.gate_up, self.down, "silu", self.x, routed, self.before)
        return (*routed, y)

    def exact(self, routed: tuple[torch.Tensor, torch.Tensor], rounded: Callable[..., torch.Tensor]) -> torch.Tensor:
        """Return the experts' sum in float64.

        Activations are ``rounded`` before each product, what it comes to is rounded to bfloat16.
        """
        total = torch.zeros_like(self.x, dtype=torch.float64)
        for e in range(EXPERTS):
            row, rank = (routed[0] == e).nonzero(as_tuple=True)
            gate, up = to_bfloat16(rounded(self.x[row].double()) @ self.gate_up[e].exact.T).chunk(2, -1)
            out = to_bfloat16(rounded(torch.nn.functional.silu(gate) * up) @ self.down[e].exact.T)
            total[row] += routed[1][row, rank].double()[:, None] * out
        return total


def to_bfloat16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().double()


def make_layer(device: Device, rows: int, kind: str = "bfloat16") -> Layer:
    torch.manual_seed(rows)
    hidden, size = (FLOAT8_HIDDEN, FLOAT8_SIZE) if kind in SCALED else (HIDDEN, SIZE)

    def weights(outputs: int, inputs: int) -> list[Weight]:
        values = [torch.randn(outputs, inputs) * inputs**-0.5 for _ in range(EXPERTS)]
        if kind in SCALED:
            sizes = torch.exp(torch.randn(1, inputs))
            return [scaled_weight(device, value * sizes, kind) for value in values]
        return [make_weight(device, value, kind, 32, None) for value in values]

    logits = torch.randn(rows, EXPERTS)
    logits[:, 3] = -100.0  # an expert nobody goes to
    experts = weights(2 * size, hidden), weights(hidden, size)
    return Layer(*experts, torch.randn(rows, hidden), torch.randn(rows, hidden), logits)


def test_a_librarys_products_give_the_weighted_sum_of_float64(capfd: pytest.CaptureFixture[str]) -> None:
    with library("experts", RIGHT) as device:
        layer = make_layer(device, 90)
        chosen, weights, y = layer.run(device)
        assert device.module.library_launches("experts") == TRIAL + PRODUCTS
        layer.run(device)
        assert device.module.library_launches("experts") == TRIAL + 2 * PRODUCTS
    exact = layer.exact((chosen, weights), to_bfloat16)
    error = (y.double() - layer.before - exact).norm() / exact.norm()
    assert error < 5e-4  # a number next to a border is rounded otherwise
    assert "products of experts by an emulated library agrees with ours" in capfd.readouterr().err


@pytest.mark.parametrize("kind", [BLOCKS, WHOLE])
def test_a_librarys_products_of_float8_are_those_of_rounded_activations(
    kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with library("experts", RIGHT) as device:
        layer = make_layer(device, 170, kind)
        layer.x *= torch.exp(2 * torch.randn(1, FLOAT8_HIDDEN))
        chosen, weights, y = layer.run(device)
        assert device.module.library_launches("experts") == TRIAL + FLOAT8_PRODUCTS
    assert "products of float8 experts by an emulated library agrees with ours" in capfd.readouterr().err
    added = y.double() - layer.before
    error = {
        width: (added - exact).norm() / exact.norm()
        for width in (128, FLOAT8_HIDDEN)
        for exact in [layer.exact((chosen, weights), partial(round_to_float8, width=width))]
    }
    # The kernel multiplies with the scale's inverse, and sums differ: a number next to a border is rounded otherwise.
    assert error[128] < 5e-3
    assert error[FLOAT8_HIDDEN] > 2 * error[128]  # the scales are those of 128 inputs


def test_rows_that_fill_a_step_are_left_alone() -> None:
    with library("experts", RIGHT) as device:
        layer = make_layer(device, 96)
        *_, whole = layer.run(device)
        device.native.set_spans([(0, 91, 0, [0])], 91)
        chosen, _, y = layer.run(device)
        assert device.module.library_launches("experts") == TRIAL + 2 * PRODUCTS
    assert (chosen[91:] == -1).all()
    assert torch.equal(y[91:], layer.before[91:])
    assert torch.equal(y[:91], whole[:91])


LEFT_OUT = [
    ("bfloat16", 90, "it is wrong"),
    ("bfloat16", 90, "the user said so"),
    ("bfloat16", 70, "rows are few"),
    ("float16", 90, "weights are float16"),
    (BLOCKS, 170, "it is wrong"),
    (WHOLE, 150, "rows are few"),
]


@pytest.mark.parametrize(("kind", "rows", "reason"), LEFT_OUT)
def test_a_librarys_products_are_left_out(kind: str, rows: int, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason == "the user said so":
        monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", "experts=own")
    with library("experts", WRONG if reason == "it is wrong" else RIGHT) as device:
        layer = make_layer(device, rows, kind)
        *_, reference = layer.run(device)
        tried = device.module.library_launches("experts")
        device.module.set_library("experts", NONE)
        *_, native = layer.run(Device("emulated"))
    assert torch.equal(reference, native)
    assert tried == (TRIAL if reason == "it is wrong" else 0)


@pytest.mark.parametrize(
    ("requested", "is_used"), [("", True), ("own,experts=library", True), ("latents=library,experts=own", False)]
)
def test_the_user_says_what_libraries_are_for(requested: str, is_used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", requested)
    with library("experts", RIGHT) as device:
        make_layer(device, 90).run(device)
        assert device.module.library_launches("experts") == (TRIAL + PRODUCTS if is_used else 0)
