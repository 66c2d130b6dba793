"""Launches that a GPU refuses are refused by the emulation too; no step asks for one.

Grids have at most 65,535 blocks in y and z; blocks at most 1,024 threads, and the shared memory of the device.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.kernels.adapters import adapted, make_adapter
from tests.kernels.arguments import AttentionRule, HeadSizes
from tests.kernels.device import Device
from tests.kernels.linear_bounds import check
from tests.kernels.sequences import Sequences
from tests.kernels.states import Recurrence, RecurrenceInputs, States, gate_heads, recurrence_gates
from tests.kernels.test_moe import make_experts
from tests.kernels.weights import group_quantized_weight, make_weight, weight_of_kind

ROWS = 65_537  # one more than y holds, and one past it
PAIRS = 8_193  # of rows and the eight experts of each: 65,544 pairs
ADA = 99 * 1024  # bytes of shared memory of compute capability 8.6, 8.9 and 12.0
INVALID_VALUE, INVALID_CONFIGURATION = 1, 9


@contextmanager
def only_checked(device: Device) -> Iterator[None]:
    """Have the emulation check launches without running them: these have too many rows for it."""
    if device.name != "emulated":
        yield
        return
    device.module.set_only_checks_launches(True)
    try:
        yield
    finally:
        device.module.set_only_checks_launches(False)


@pytest.fixture
def shared_memory(cuda: Device) -> Iterator[None]:
    """A device with as much shared memory as consumer cards have."""
    if cuda.name != "emulated":
        pytest.skip("a GPU's shared memory is its own")
    cuda.module.set_shared_memory(ADA)
    yield
    cuda.module.set_shared_memory(227 * 1024)


def test_a_launch_with_memory_of_the_host_is_refused(cuda: Device) -> None:
    if cuda.name != "emulated":
        pytest.skip("this is about the emulation")
    for memory in ("device", "pinned"):
        cuda.module.launch_with(memory)
    with pytest.raises(RuntimeError, match="argument 0 has a pointer to the host's memory, 8 bytes from its beginning"):
        cuda.module.launch_with("host")


def test_the_emulation_launches_what_a_gpu_does(cuda: Device) -> None:
    if cuda.name != "emulated":
        pytest.skip("this is about the emulation")
    check = cuda.module.check_launch
    assert check([2**31 - 1, 65_535, 65_535], 1024, 227 * 1024) == 0
    for grid in ([0, 1, 1], [2**31, 1, 1], [1, 65_536, 1], [1, 1, 65_536]):
        assert check(grid, 32, 0) == INVALID_CONFIGURATION
    assert check([1, 1, 1], 1025, 0) == INVALID_CONFIGURATION
    assert check([1, 1, 1], 32, 227 * 1024 + 1) == INVALID_VALUE


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "int4"])
def test_any_number_of_rows_is_multiplied(cuda: Device, kind: str) -> None:
    weight = make_weight(cuda, torch.randn(48, 32), kind, 32, torch.randn(48))
    with only_checked(cuda):
        cuda.linear(weight, torch.randn(ROWS, 32))


def test_any_number_of_rows_is_embedded_moved_and_adapted(cuda: Device) -> None:
    rows, every = torch.randn(ROWS, 8), torch.arange(ROWS, dtype=torch.int32)
    with only_checked(cuda):
        cuda.embed(make_weight(cuda, torch.randn(16, 8), "bfloat16"), every % 16, 1.0)
        cuda.gather_rows(rows, every)
        cuda.scatter_rows(rows, every, rows)
        cuda.copy_heads(rows.view(ROWS, 2, 4), torch.randn(ROWS, 2, 6))
        adapter = make_adapter("bfloat16", 8, 8, [(0, 8, 2, 1.0)])
        adapted(cuda, rows, rows, [adapter], [0] * ROWS)


def test_any_number_of_rows_and_sequences_goes_through_recurrent_mixers(cuda: Device) -> None:
    rule = Recurrence(1, 1, 2, 2, has_delta=True, decay_width=1)
    spans = [(row, 1, row, True) for row in range(ROWS)]
    with only_checked(cuda):
        decay, beta = recurrence_gates(
            cuda, torch.randn(ROWS, 1, 1), torch.randn(ROWS, 1), torch.randn(1), torch.randn(1, 1)
        )
        x = gate_heads(cuda, torch.randn(ROWS, 1, 2), torch.randn(ROWS, 1, 2), "silu")
        States(cuda, ROWS, 4).recur(rule, RecurrenceInputs(x, x, x, decay[..., 0], beta, None), spans)
        States(cuda, ROWS, 3).convolve(torch.randn(ROWS, 1), torch.randn(1, 4), None, spans, has_silu=True)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int4", "codes, shuffled"])
def test_any_number_of_pairs_of_rows_and_experts_is_computed(cuda: Device, kind: str) -> None:
    gate_up, down = (make_experts(cuda, kind, 8, shape) for shape in ((64, 32), (32, 32)))
    chosen = torch.arange(8, dtype=torch.int32).expand(PAIRS, 8)
    with only_checked(cuda):
        x, shares = torch.randn(PAIRS, 32), torch.full((PAIRS, 8), 0.125)
        cuda.add_experts(gate_up, down, "silu", x, (chosen, shares), torch.zeros(PAIRS, 32))


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_long_heads_decode_on_devices_with_less_shared_memory(cuda: Device, shared_memory: None, bits: int) -> None:
    torch.manual_seed(0)
    batch = Sequences(cuda, [150], HeadSizes(4, 2, 256, 256), 64, bits, AttentionRule(2.0**-4))
    batch.check(0, batch.run([[(0, 0, 149)], [(0, 149, 1)]])[0])


@pytest.mark.parametrize("rows", [20, 64])
def test_tiles_of_codes_fit_devices_with_less_shared_memory(cuda: Device, shared_memory: None, rows: int) -> None:
    torch.manual_seed(rows)
    weight, x = group_quantized_weight(cuda, (40, 1500), 4, 64, shuffles_inputs=False), torch.randn(rows, 1500)
    check(cuda, cuda.linear(weight, x), x, weight, "int4")


@pytest.mark.parametrize(
    ("kind", "rows"), [("bfloat16", 17), ("float16", 200), ("int4", 17), ("int8", 200), ("int8 by output", 200)]
)
def test_rows_are_made_and_rounded_in_one_launch(cuda: Device, kind: str, rows: int) -> None:
    if cuda.name != "emulated":
        pytest.skip("a GPU does not count its launches")
    weight, x = weight_of_kind(cuda, torch.randn(40, 96), kind, 32), torch.randn(rows, 192)

    def launches(run: Callable[[], torch.Tensor]) -> float:
        before: int = cuda.module.calls_of("cudaLaunchKernel")
        run()
        after: int = cuda.module.calls_of("cudaLaunchKernel")
        return (after - before) / 2  # it is called twice

    rows_alone = x[:, :96].contiguous()
    of_rows = launches(lambda: cuda.linear(weight, rows_alone))
    assert of_rows >= 1
    assert launches(lambda: cuda.linear_of_norms(weight, rows_alone, torch.randn(96), 1e-5)) == of_rows
    assert launches(lambda: cuda.linear_of_gates(weight, x, "silu")) == of_rows
