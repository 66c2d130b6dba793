"""Operators on several residual streams, and the cut of activations, alongside float64."""

import pytest
import torch

from tests.kernels.device import Device


def agree(found: torch.Tensor, exact: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), exact, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("count", "rows", "size"), [(1, 1, 1), (2, 3, 37), (4, 5, 1536)])
def test_streams_agree_with_float64(device: Device, count: int, rows: int, size: int) -> None:
    torch.manual_seed(size)
    x, made = torch.randn(count, rows, size), torch.randn(rows, size)
    square, line = torch.randn(rows, count, count) / count, torch.randn(rows, count)
    mixed = x.double() + torch.einsum("rik,krs->irs", square.double(), x.double())
    y = torch.empty_like(x)
    device.native.altup_predict(count, rows, size, square, x, y)
    agree(y, mixed)
    active = count // 2
    change = (made - x[active]).double()
    exact = x.double() + (1 + line.double()).T[:, :, None] * change
    device.native.altup_correct(count, rows, size, active, line, made, x)
    agree(x, exact)


@pytest.mark.parametrize("size", [1, 37, 1536])
def test_rows_get_the_root_mean_square_of_others(device: Device, size: int) -> None:
    torch.manual_seed(size)
    like, x = torch.randn(4, size), torch.randn(4, size) * torch.tensor([3.0, 1.0, 1e-4, 0.0])[:, None]
    exact = x.double()
    length = exact.square().mean(-1, keepdim=True).clamp(min=1e-5).sqrt()
    device.native.match_rms(like, 4, size, x)
    agree(x, exact * like.double().square().mean(-1, keepdim=True).sqrt() / length)


@pytest.mark.parametrize(("size", "factor"), [(1, 1.0), (37, 1.6449), (4096, 1.6449)])
def test_activations_are_cut_at_their_spread_and_nothing_else_is(device: Device, size: int, factor: float) -> None:
    torch.manual_seed(size)
    x = torch.randn(3, size + 5) * 2 + 0.5
    stream = x[:, :size].double()
    cut = stream.mean(-1, keepdim=True) + factor * stream.std(-1, unbiased=False, keepdim=True)
    rest = x[:, size:].clone()
    device.native.activation_sparsity(factor, 3, size, size + 5, x)
    agree(x[:, :size], (stream - cut).clamp(min=0))
    assert torch.equal(x[:, size:], rest)


@pytest.mark.parametrize("size", [1, 37, 1536])
def test_sums_are_scaled_after_they_are_rounded(device: Device, size: int) -> None:
    torch.manual_seed(size)
    x, y, scale = torch.randn(3, size), torch.randn(3, size), torch.tensor(0.5).sqrt()
    exact = (y + x) * scale
    device.native.scaled_sum(scale.item(), x, 3, size, y)
    assert torch.equal(y, exact)
