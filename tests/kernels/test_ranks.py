"""Sums over the ranks that a model is spread over, and what they gather."""

from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

from tests.kernels.device import Device

Values: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


def join(device: Device, count: int, *, gathers: bool) -> tuple[Values, Values]:
    """Return random parts ``[ranks, steps, count]``, and what each rank has of each step's, summed or gathered."""
    # On one GPU this is NCCL with one rank, which shows that it is called as it wants to be.
    ranks = min(device.module.device_count(), 4) if device.is_cuda else 4
    parts = np.random.default_rng(count).standard_normal((ranks, 4, count), np.float32)
    try:
        return parts, device.module.join_ranks("cuda" if device.is_cuda else "cpu", parts, gathers)
    except RuntimeError as error:
        if "libnccl.so.2 was not found" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("count", [1, 577, 40_000])
def test_every_rank_gets_the_same_sum_launched_captured_and_repeated(device: Device, count: int) -> None:
    parts, sums = join(device, count, gathers=False)
    assert (sums == sums[0]).all()
    # A sum of so few is rounded once for each; the order is the exchange's.
    exact = torch.from_numpy(parts).double().sum(0)
    torch.testing.assert_close(torch.from_numpy(sums[0]).double(), exact, rtol=0, atol=len(parts) * 4 * 2.0**-23)


@pytest.mark.parametrize("count", [1, 577])
def test_every_rank_gets_the_parts_of_all_launched_captured_and_repeated(device: Device, count: int) -> None:
    parts, gathered = join(device, count, gathers=True)
    in_order = np.moveaxis(parts, 0, 1).reshape(4, -1)  # by steps
    assert (gathered == in_order).all()


@pytest.mark.parametrize("is_graph", [False, True])
def test_ranks_that_wait_for_one_that_fails_end(cuda: Device, is_graph: bool) -> None:
    if cuda.name != "emulated":
        pytest.skip("one GPU has one rank")
    *waiting, failing = cuda.module.abandon_ranks("cuda", 3, is_graph)
    assert waiting == ["another rank of the model has failed"] * 2
    assert failing == "given up"
