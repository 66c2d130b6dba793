"""Warm-up of a worker on a GPU: afterwards no step waits for a compiler or a capture.

Captures are counted where kernels run, or are interpreted. Whether a launch needs a kernel that is not compiled is what
Triton itself says, in a process whose driver can neither compile nor run (`count_compilations.py`).
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lmdeploy.pytorch import step_runner
from lmdeploy.pytorch.start import warm_up
from tests.pytorch.kernels.conftest import check
from tests.pytorch.test_transformers_models import HIDDEN, VOCAB
from tests.support.worker_steps import Part, StepDriver

ROOT = Path(__file__).parents[3]
SEQUENCES, BLOCKS = 3, 5


@pytest.fixture
def drivers(drivers: tuple[StepDriver, StepDriver]) -> tuple[StepDriver, StepDriver]:
    """The second one captures while it is prepared, steps of 12 tokens at most."""
    _, gpu = drivers
    gpu.runner._captures = True
    gpu.tokens = gpu.tokens[:12]
    return drivers


def test_graphs_of_all_sizes_are_captured_before_the_first_step(
    drivers: tuple[StepDriver, StepDriver], captures: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    cpu, gpu = drivers
    gpu.runner.prepare(SEQUENCES, BLOCKS)
    assert len(captures) == len({1, 2, 4})
    # All rows, powers of two below; steps of decoding of every size, and of as many sequences as there may be.
    assert "pytorch: 8 sizes of steps prepared" in capfd.readouterr().err
    steps = [[Part(sequence, 0, [5, 17, 30 + sequence]) for sequence in range(SEQUENCES)]]
    steps += [
        [Part(sequence, 3 + count, [40 + count]) for sequence in range(SEQUENCES - count)] for count in range(SEQUENCES)
    ]
    for parts in steps:
        check(cpu, gpu, *parts)
    assert len(captures) == len({1, 2, 4})


def test_graphs_are_captured_again_for_another_cache(
    drivers: tuple[StepDriver, StepDriver], captures: list[int]
) -> None:
    cpu, gpu = drivers
    gpu.runner.prepare(2, BLOCKS)
    gpu.runner.allocate(256, 16)
    gpu.runner.prepare(2, BLOCKS)
    assert len(captures) == 2 * len({1, 2})
    for parts in ([Part(0, 0, [5, 17])], [Part(0, 2, [8])]):
        check(cpu, gpu, *parts)


def test_the_environment_leaves_it_to_the_first_requests(
    drivers: tuple[StepDriver, StepDriver], captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMDEPLOY_SKIP_WARMUP", "1")
    _, gpu = drivers
    gpu.runner.prepare(SEQUENCES, BLOCKS)
    assert not captures
    gpu.step(Part(0, 0, [5]))
    assert len(captures) == 1


def test_memory_that_is_not_enough_for_the_largest_step_is_said_at_the_start(
    drivers: tuple[StepDriver, StepDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    _, gpu = drivers
    monkeypatch.setattr(gpu.runner._model, "forward", fail)
    with pytest.raises(ValueError, match=r"a step of 12 tokens needs more memory .*: lower cache_max_entry_count"):
        gpu.runner.prepare(SEQUENCES, BLOCKS)


def test_memory_that_is_not_enough_for_model_or_cache_is_said_with_versions(
    drivers: tuple[StepDriver, StepDriver], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79 GiB. Of these")

    _, gpu = drivers
    monkeypatch.setattr(gpu.runner._cache, "allocate", fail)
    versions = re.escape(f"PyTorch {torch.__version__}, CUDA ")
    message = rf"needs more memory than the GPU has left \(CUDA out of memory. Tried .* 2.00 GiB; {versions}.*\): "
    with pytest.raises(ValueError, match=f"the cache {message}lower cache_max_entry_count$"):
        gpu.runner.allocate(256, 16)
    monkeypatch.setattr(step_runner, "_model_of", fail)
    with pytest.raises(ValueError, match=f"the model {message}use a quantized checkpoint"):
        StepDriver(tmp_path / "model", VOCAB, HIDDEN, dtype="float32", by_transformers=True, device="cpu")


def test_sizes_reach_the_largest_steps() -> None:
    assert warm_up.decoding_sizes(300) == [300, *range(256, 8, -8), 8, 4, 2, 1]
    assert warm_up.prompt_sizes(100) == [100, 64, 32, 16, 8, 4, 2]


@pytest.mark.parametrize("session_len", [1, 16, 40, 48])
def test_positions_are_those_of_a_session_and_blocks_those_of_the_cache(session_len: int) -> None:
    sizes = warm_up.StepSizes(
        tokens=100, sequences=3, sequence_blocks=-(-session_len // 16) + 1, block_count=2, block_len=16
    )
    for step in warm_up.steps_of(sizes, None, torch.device("cpu")):
        assert int(step.position_ids.max()) < session_len
        assert int(step.block_offsets.max()) < 2
        assert step.block_offsets.shape[1] * 16 >= int(step.kv_seqlens.max())


def needed(how: str) -> dict[str, tuple[int, list[str]]]:
    """Return, for each model, how many kernels were needed before the first step, and which after it."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("count_compilations.py")), how],
        capture_output=True, text=True, timeout=280, check=False, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (line.split(": ") for line in done.stdout.splitlines())
    return {model: (int(before), after) for model, before, *after in lines}


def test_no_step_needs_a_kernel_that_is_not_compiled() -> None:
    for model, (before, after) in needed("prepared").items():
        assert before >= 4, model  # the cache's, and attention's
        assert after == [], model


@pytest.mark.thorough
def test_without_it_steps_need_kernels() -> None:
    assert all(len(after) >= 4 for _, after in needed("not prepared").values())
