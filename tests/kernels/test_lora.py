"""Low-rank adapters, rows of several in one step, against float64 and against each row alone."""

import pytest
import torch

from tests.kernels.adapters import Adapter, adapted, make_adapter
from tests.kernels.device import Device

EPS = 2.0**-24
ALONE = [(0, 64, 16, 2.0)]
# q, k and v of different ranks; outputs between them that nobody adapts; sizes that fill no vector.
JOINED = [(0, 130, 8, 2.0), (130, 33, 3, 0.5), (170, 21, 16, 1.0)]


def expected(adapters: list[Adapter], of_row: list[int], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    exact = y.double()
    for row, adapter in enumerate(of_row):
        if adapter >= 0:
            exact[row] += adapters[adapter].exact @ x[row].double()
    return exact


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("in_features", "out_features"), [(576, 191), (37, 200)])
def test_each_row_gets_what_its_own_adapter_adds(
    device: Device, kind: str, in_features: int, out_features: int
) -> None:
    torch.manual_seed(in_features)
    adapters = [
        make_adapter(kind, in_features, out_features, JOINED),
        make_adapter(kind, in_features, out_features, ALONE),
        make_adapter(kind, in_features, out_features, [(5, out_features - 5, 1, -1.0)]),
    ]
    of_row = [0, -1, 1, 1, 2, 0, -1, 2]
    x, y = torch.randn(len(of_row), in_features), torch.randn(len(of_row), out_features)
    out = adapted(device, x, y, adapters, of_row)
    exact = expected(adapters, of_row, x, y)
    for row, adapter in enumerate(of_row):
        if adapter < 0:
            assert torch.equal(out[row], y[row])
            continue
        bound = (in_features + 32) * EPS * (adapters[adapter].magnitude @ x[row].double().abs()) + EPS * exact[
            row
        ].abs()
        assert ((out[row].double() - exact[row]).abs() <= 2 * bound + EPS * y[row].abs()).all()


def test_a_row_is_bitwise_the_same_alone_and_alongside_rows_of_any_adapters(device: Device) -> None:
    torch.manual_seed(1)
    adapters = [make_adapter("bfloat16", 200, 191, JOINED), make_adapter("bfloat16", 200, 191, ALONE)]
    of_row = [0] * 51 + [1] * 7 + [-1] * 2 + [1, 0, 1]
    x, y = torch.randn(len(of_row), 200), torch.randn(len(of_row), 191)
    together = adapted(device, x, y, adapters, of_row)
    for row in (0, 5, 47, 48, 50, 51, 57, 60, 61, 62):
        alone = adapted(device, x[row : row + 1], y[row : row + 1], [adapters[of_row[row]]], [0])
        assert torch.equal(alone[0], together[row])


def test_a_row_that_is_not_finite_spoils_no_other(device: Device) -> None:
    torch.manual_seed(2)
    adapters = [make_adapter("float32", 64, 80, [(0, 80, 4, 1.0)])]
    x, y = torch.randn(6, 64), torch.zeros(6, 80)
    clean = adapted(device, x, y, adapters, [0] * 6)
    x[2, 3] = torch.nan
    out = adapted(device, x, y, adapters, [0] * 6)
    assert out[2].isnan().all()
    assert torch.equal(out[[0, 1, 3, 4, 5]], clean[[0, 1, 3, 4, 5]])


def test_many_rows_of_one_wide_adapter_agree_with_float64(device: Device) -> None:
    torch.manual_seed(3)
    adapters = [make_adapter("bfloat16", 300, 700, [(0, 700, 64, 0.25)])]
    x, y = torch.randn(100, 300), torch.randn(100, 700)
    out = adapted(device, x, y, adapters, [0] * 100)
    bound = 400 * EPS * (x.double().abs() @ adapters[0].magnitude.T) + 4 * EPS * y.abs()
    assert ((out.double() - y.double() - x.double() @ adapters[0].exact.T).abs() <= 2 * bound).all()
