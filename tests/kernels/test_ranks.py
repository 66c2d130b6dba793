"""Sums over the ranks that a model is spread over, and what they gather."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

from tests.kernels.device import Device

INVALID_VALUE = 1  # of cudaError_t
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


def calls_of_nccl(device: Device) -> int:
    """Return how many sums and gatherings the emulation's NCCL was asked for; 0 on other devices."""
    names = ("ncclAllReduce", "ncclAllGather") if device.name == "emulated" else ()
    return sum(device.module.calls_of(name) for name in names)


@pytest.mark.parametrize("count", [1, 577, 40_000])
def test_every_rank_gets_the_same_sum_launched_captured_and_repeated(device: Device, count: int) -> None:
    check_sums(device, count)


def check_sums(device: Device, count: int) -> None:
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


@pytest.fixture
def emulated(cuda: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    if cuda.name != "emulated":
        pytest.skip("asks the emulation what was called")
    monkeypatch.delenv("LMDEPLOY_CUDA_KERNELS", raising=False)
    yield cuda
    cuda.module.clear_faults()
    cuda.module.set_pauses(False)


def test_small_sums_go_around_nccl_and_large_ones_do_not(emulated: Device) -> None:
    before = calls_of_nccl(emulated)
    for gathers in (False, True):
        join(emulated, 128 << 10, gathers=gathers)
    assert calls_of_nccl(emulated) == before
    check_sums(emulated, (128 << 10) + 1)
    assert calls_of_nccl(emulated) > before


def test_the_environment_leaves_sums_to_nccl(
    emulated: Device, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    check_sums(emulated, 5)
    assert "a sum over 4 GPUs in one launch agrees with the host's" in capfd.readouterr().err
    before = calls_of_nccl(emulated)
    monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", "peers=library")
    check_sums(emulated, 5)
    assert calls_of_nccl(emulated) > before
    assert capfd.readouterr().err == ""


def test_gpus_that_do_not_let_others_in_sum_by_nccl(emulated: Device, capfd: pytest.CaptureFixture[str]) -> None:
    before = calls_of_nccl(emulated)
    emulated.module.inject_fault("cudaDeviceEnablePeerAccess", 3, INVALID_VALUE, False)
    check_sums(emulated, 5)
    assert calls_of_nccl(emulated) > before
    assert "a sum over 4 GPUs in one launch is not used, since its self-check failed" in capfd.readouterr().err


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_overtake_each_other_read_what_belongs_to_their_call(emulated: Device, ranks: int) -> None:
    emulated.module.set_pauses(True)
    before = calls_of_nccl(emulated)
    assert emulated.module.race_ranks("cuda", ranks, 1500) == 0
    assert calls_of_nccl(emulated) == before


@pytest.mark.parametrize("is_graph", [False, True])
def test_ranks_that_wait_for_one_that_fails_end(emulated: Device, is_graph: bool) -> None:
    *waiting, failing = emulated.module.abandon_ranks("cuda", 3, is_graph)
    assert waiting == ["another rank of the model has failed"] * 2
    assert failing == "given up"
