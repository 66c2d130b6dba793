"""Sums over the ranks that a model is spread over."""

import numpy as np
import pytest
import torch

from tests.kernels.device import Device


@pytest.mark.parametrize("count", [1, 577, 40_000])
def test_every_rank_gets_the_same_sum_launched_captured_and_repeated(device: Device, count: int) -> None:
    # On one GPU this is NCCL with one rank, which shows that it is called as it wants to be.
    ranks = min(device.module.device_count(), 4) if device.is_cuda else 4
    parts = np.random.default_rng(count).standard_normal((ranks, 4, count), np.float32)
    try:
        sums = device.module.sum_over_ranks("cuda" if device.is_cuda else "cpu", parts)
    except RuntimeError as error:
        if "libnccl.so.2 was not found" not in str(error):
            raise
        pytest.skip(str(error))
    assert (sums == sums[0]).all()
    # A sum of so few is rounded once for each; the order is the exchange's.
    exact = torch.from_numpy(parts).double().sum(0)
    torch.testing.assert_close(torch.from_numpy(sums[0]).double(), exact, rtol=0, atol=ranks * 4 * 2.0**-23)
