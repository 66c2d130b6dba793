"""A library's products of experts: what surrounds its kernel, and that only one which agrees with ours is used.

The kernel itself is emulated here: a loop over the groups that a table on the device tells of.
"""

from dataclasses import dataclass

import pytest
import torch

from tests.kernels.arguments import Router
from tests.kernels.device import Device
from tests.kernels.emulated_library import NONE, RIGHT, WRONG, library, needs_emulation
from tests.kernels.weights import Weight, make_weight

HIDDEN, SIZE = 64, 32
EXPERTS, TOP_K = 5, 2
TRIAL, PRODUCTS = 1, 2  # launches of a trial and of a layer

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


def make_layer(device: Device, rows: int, kind: str = "bfloat16") -> Layer:
    torch.manual_seed(rows)

    def weights(outputs: int, inputs: int) -> list[Weight]:
        values = [torch.randn(outputs, inputs) * inputs**-0.5 for _ in range(EXPERTS)]
        return [make_weight(device, value, kind, 32, None) for value in values]

    logits = torch.randn(rows, EXPERTS)
    logits[:, 3] = -100.0  # an expert nobody goes to
    experts = weights(2 * SIZE, HIDDEN), weights(HIDDEN, SIZE)
    return Layer(*experts, torch.randn(rows, HIDDEN), torch.randn(rows, HIDDEN), logits)


def test_a_librarys_products_give_the_weighted_sum_of_float64(capfd: pytest.CaptureFixture[str]) -> None:
    with library("groups", RIGHT) as device:
        layer = make_layer(device, 90)
        chosen, weights, y = layer.run(device)
        assert device.module.library_launches("groups") == TRIAL + PRODUCTS
        layer.run(device)
        assert device.module.library_launches("groups") == TRIAL + 2 * PRODUCTS
    exact = torch.zeros_like(y, dtype=torch.float64)
    for e in range(EXPERTS):
        row, rank = (chosen == e).nonzero(as_tuple=True)
        gate, up = (layer.x[row].double() @ layer.gate_up[e].exact.T).chunk(2, -1)
        out = (torch.nn.functional.silu(gate) * up) @ layer.down[e].exact.T
        exact[row] += weights[row, rank].double()[:, None] * out
    error = (y.double() - layer.before - exact).norm() / exact.norm()
    assert error < 1e-2  # activations are rounded to bfloat16 twice
    assert "products of experts by an emulated library agrees with ours" in capfd.readouterr().err


def test_rows_that_fill_a_step_are_left_alone() -> None:
    with library("groups", RIGHT) as device:
        layer = make_layer(device, 96)
        *_, whole = layer.run(device)
        device.begin_step(91)
        chosen, _, y = layer.run(device)
        assert device.module.library_launches("groups") == TRIAL + 2 * PRODUCTS
    assert (chosen[91:] == -1).all()
    assert torch.equal(y[91:], layer.before[91:])
    assert torch.equal(y[:91], whole[:91])


@pytest.mark.parametrize("reason", ["it is wrong", "the user said so", "rows are few", "weights are float16"])
def test_a_librarys_products_are_left_out(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason == "the user said so":
        monkeypatch.setenv("LMDEPLOY_CUDA_LIBRARIES", "0")
    rows = 70 if reason == "rows are few" else 90
    with library("groups", WRONG if reason == "it is wrong" else RIGHT) as device:
        layer = make_layer(device, rows, "float16" if reason == "weights are float16" else "bfloat16")
        *_, theirs = layer.run(device)
        tried = device.module.library_launches("groups")
        device.module.set_library("groups", NONE)
        *_, ours = layer.run(Device("emulated"))
    assert torch.equal(theirs, ours)
    assert tried == (TRIAL if reason == "it is wrong" else 0)
