"""Sums over the GPUs that a model is spread over."""

import numpy as np
import pytest

from tests.kernels.cuda_device import CudaModule


@pytest.mark.parametrize("count", [1, 577, 40_000])
def test_every_rank_gets_the_same_sum_launched_captured_and_repeated(cuda: CudaModule, count: int) -> None:
    # On one GPU this is NCCL with one rank, which shows that it is called as it wants to be.
    ranks = min(cuda.device_count(), 4)
    parts = np.random.default_rng(count).standard_normal((ranks, 4, count), np.float32)
    try:
        sums = cuda.sum_over_ranks(parts)
    except RuntimeError as error:
        if "libnccl.so.2 was not found" not in str(error):
            raise
        pytest.skip(str(error))
    assert (sums == sums[0]).all()
    # A sum of so few is rounded once for each; the order is NCCL's.
    np.testing.assert_allclose(sums[0], parts.astype(np.float64).sum(0), rtol=0, atol=ranks * 4 * 2.0**-23)
