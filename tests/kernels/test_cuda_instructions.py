"""Foundations of kernels: matrix instructions, collectives, barriers, overlap; the emulation refuses undefined uses.

``count_on`` is a graph of launches of which each adds 1 to what the one before has written. 0: it reads that after it
has waited for that launch, 1: before, 2: it does not wait at all.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.kernels.device import Device
from tests.kernels.weights import make_weight

LAUNCHES = 6


@pytest.mark.parametrize("is_bf16", [True, False])
def test_a_tile_is_multiplied_as_the_product_of_its_matrices(cuda: Device, is_bf16: bool) -> None:
    torch.manual_seed(0)
    kind = torch.bfloat16 if is_bf16 else torch.float16
    a, b = torch.randn(16, 16).to(kind), torch.randn(16, 8).to(kind)
    multiply, out = getattr(cuda.native, f"multiply_tile_{'bf16' if is_bf16 else 'f16'}"), torch.empty(16, 8)
    multiply(1, 32, a.view(torch.int16), b.view(torch.int16), out)
    exact = a.double() @ b.double()
    # Products of 16-bit floats are exact in float32; 16 of about 1 are summed, by hardware perhaps truncating.
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=16 * 2.0**-22)


def test_a_tile_is_transposed_between_lanes(cuda: Device) -> None:
    x = np.arange(64, dtype=np.uint16).reshape(8, 8)
    out = np.empty_like(x)
    cuda.native.transpose_tile(1, 32, x.view(np.uint32), out.view(np.uint32))
    assert (out == x.T).all()


@pytest.mark.parametrize("adds", [True, False])
def test_four_warps_multiply_what_came_by_bulk(cuda: Device, *, adds: bool) -> None:
    if cuda.module.compute_capability() != 90:
        pytest.skip("the instruction is Hopper's")
    torch.manual_seed(0)
    a, b, c = torch.randn(64, 16).half(), torch.randn(16, 32).half(), torch.randn(64, 32)
    eights = b.view(2, 8, 32).transpose(1, 2).contiguous()  # of a column's eight neighbouring inputs
    out = torch.empty_like(c)
    cuda.native.multiply_group(1, 128, a.view(torch.int16), eights.view(torch.int16), c, adds, out)
    exact = a.double() @ b.double() + (c.double() if adds else 0)
    torch.testing.assert_close(out.double(), exact, rtol=0, atol=17 * 2.0**-22)


@pytest.mark.parametrize("delta", [0, 1, 7, 31])
def test_lanes_and_threads_see_each_other(cuda: Device, delta: int) -> None:
    x = np.random.default_rng(delta).standard_normal(6 * 32, np.float32)
    shifted, votes, above = np.empty_like(x), np.empty(6, np.uint32), np.empty(6 * 32, np.int32)
    cuda.native.talk(2, 96, x, delta, shifted, votes, above)
    lanes = x.reshape(6, 32)
    expected = np.concatenate([lanes[:, delta:], lanes[:, 32 - delta :]], axis=1)
    assert (shifted.reshape(6, 32) == expected).all()
    assert [bin(v).count("1") for v in votes.tolist()] == (lanes > 0).sum(1).tolist()
    assert ((votes & 1) == (lanes[:, 0] > 0)).all()
    assert (above.reshape(2, 96) == (x.reshape(2, 96) > 0).sum(1, keepdims=True)).all()


NOBODY, BLOCK, HALF = range(3)  # threads that a barrier waits for


def reversed_by(cuda: Device, x: np.ndarray, barrier: int) -> np.ndarray:
    y = np.empty_like(x)
    cuda.native.reverse(x.size // 128, 128, x, y, barrier)
    return y


@pytest.mark.parametrize("barrier", [BLOCK, HALF])
def test_a_barrier_is_needed_and_does_its_work(cuda: Device, barrier: int) -> None:
    x = np.arange(64 * 6, dtype=np.int32)
    expected = x.reshape(6, 64)[:, ::-1].ravel()
    assert (reversed_by(cuda, x, barrier) == expected).all()
    if cuda.name == "emulated":  # a GPU may happen to be right
        assert (reversed_by(cuda, x, NOBODY) != expected).any()


@pytest.mark.parametrize(
    ("misses", "message"),
    [(0, "__syncthreads.*left the kernel"), (1, "__syncwarp"), (2, "barrier 1 for threads that do not come")],
)
def test_the_emulation_reports_who_stays_away_from_a_barrier(cuda: Device, misses: int, message: str) -> None:
    if cuda.name != "emulated":
        pytest.skip("undefined on a GPU: only the emulation can be asked")
    with pytest.raises(RuntimeError, match=message):
        cuda.native.misbehave(1, 64, misses)
    test_a_barrier_is_needed_and_does_its_work(cuda, BLOCK)  # the next launch is not disturbed


@pytest.fixture
def numbers() -> np.ndarray:
    """Of five blocks."""
    return np.arange(5 * 64, dtype=np.int32)


def test_launches_see_what_those_before_them_wrote(cuda: Device, numbers: np.ndarray) -> None:
    assert (cuda.native.count_on(numbers, LAUNCHES, 0) == numbers + LAUNCHES).all()


def test_what_is_read_before_waiting_is_old(cuda: Device, numbers: np.ndarray) -> None:
    if cuda.name != "emulated":
        pytest.skip("a GPU may happen to be right")
    assert (cuda.native.count_on(numbers, LAUNCHES, 1) != numbers + LAUNCHES).any()


def test_a_kernel_that_does_not_wait_is_refused(cuda: Device, numbers: np.ndarray) -> None:
    if cuda.name != "emulated":
        pytest.skip("only the emulation can be asked")
    with pytest.raises(RuntimeError, match="without await_previous"):
        cuda.native.count_on(numbers, LAUNCHES, 2)
    test_launches_see_what_those_before_them_wrote(cuda, numbers)


def test_without_overlap_nobody_has_to_wait(cuda: Device, numbers: np.ndarray) -> None:
    if cuda.name != "emulated":
        pytest.skip("undefined on a GPU")
    program = (
        "import numpy as np; from tests.kernels import _cuda_emulated as module; device = module.Device('cuda');"
        f"print((device.count_on(np.arange(320, dtype=np.int32), {LAUNCHES}, 2) - np.arange(320)).tolist())"
    )
    environment = {**os.environ, "LMDEPLOY_CUDA_KERNELS": "overlap=off"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([LAUNCHES] * numbers.size)


@pytest.mark.parametrize(("kind", "rows"), [("bfloat16", 3), ("bfloat16", 12), ("int4", 3), ("int8", 12), ("int4", 20)])
def test_layers_in_a_graph_take_nothing_too_early(cuda: Device, kind: str, rows: int) -> None:
    torch.manual_seed(0)
    weights = [make_weight(cuda, torch.randn(256, 256) / 16, kind, 64).native for _ in range(4)]
    x, like = torch.randn(rows, 256).numpy(), np.zeros((rows, 256), np.float32)
    launched, in_a_graph = cuda.native.chain_linear(weights, x, like)
    assert np.isfinite(launched).all()
    assert (in_a_graph == launched).all()
