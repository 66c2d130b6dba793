"""Decoding by graphs: those of a GPU, or a stand-in that runs its function again on the tensors it captured."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from lmdeploy.pytorch import graphs
from lmdeploy.pytorch.graphs import DecodingGraphs, Outputs
from lmdeploy.pytorch.models.patched_model import PatchedModel
from tests.pytorch.kernels.conftest import Again, check
from tests.support.adapters import make_adapter
from tests.support.tiny_models import make_tiny_llama
from tests.support.worker_steps import Order, Part, StepDriver


def test_steps_of_any_size_bring_what_they_bring_alone(
    drivers: tuple[StepDriver, StepDriver], captures: list[int]
) -> None:
    check(*drivers, Part(0, 0, [5, 17, 300]), Part(1, 0, [8]), Part(2, 0, [*range(20, 35)]))
    assert not captures
    check(*drivers, Part(0, 3, [41]), Part(1, 1, [42]), Part(2, 15, [43]))  # 4 rows, one of nobody
    check(*drivers, Part(2, 16, [44]), Part(0, 4, [45]), Part(1, 2, [46]))  # over the end of a block
    assert len(captures) == 1
    check(*drivers, Part(1, 3, [47]))
    assert len(captures) == 2
    check(*drivers, Part(3, 0, [3, 3, 3]), Part(2, 17, [7]))  # what graphs wrote is seen by others
    assert len(captures) == 2


def test_a_row_with_an_adapter_keeps_its_step_from_a_graph(
    drivers: tuple[StepDriver, StepDriver], captures: list[int], tmp_path: Path
) -> None:
    adapter = make_adapter(tmp_path / "adapter", tmp_path / "model", targets=("q_proj",))
    for driver in drivers:
        driver.runner.set_adapter(1, str(adapter))
    check(*drivers, Part(0, 0, [5, 17, 300], adapter=1), Part(1, 0, [5, 17, 300]))
    check(*drivers, Part(0, 3, [8], adapter=1), Part(1, 3, [8]))
    assert not captures
    check(*drivers, Part(1, 4, [8]))
    assert len(captures) == 1


def test_a_model_that_does_not_want_it_is_not_captured(
    drivers: tuple[StepDriver, StepDriver], captures: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, gpu = drivers
    monkeypatch.setattr(
        gpu.runner._model, "can_capture", lambda step: step.is_decoding and len(step.logits_indices) > 1
    )
    check(cpu, gpu, Part(0, 0, [5]))
    assert not captures
    check(cpu, gpu, Part(0, 1, [6]), Part(1, 0, [5]))
    assert len(captures) == 1


@pytest.mark.parametrize("support", [False, lambda input_ids, **_: input_ids.shape[-1] > 1])
def test_a_class_says_what_may_be_captured(support: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny_llama(tmp_path, vocab_size=500, num_hidden_layers=1)
    driver = StepDriver(tmp_path, 500, 32, dtype="float32")
    driver.step(Part(0, 0, [5]))
    model = driver.runner._model
    assert isinstance(model, PatchedModel)
    step = driver.runner._context(Order(1, 1, 1), driver, driver.spans[:1], driver.choices[:0])
    assert model.can_capture(step)
    monkeypatch.setattr(model._model, "support_cuda_graph", support)
    assert not model.can_capture(step)


def test_a_model_that_cannot_be_captured_runs_as_it_is(
    drivers: tuple[StepDriver, StepDriver], caplog: pytest.LogCaptureFixture
) -> None:
    tries = []

    def fail(_: Callable[[], Outputs]) -> Again:
        tries.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    cpu, gpu = drivers
    gpu.runner._forward = DecodingGraphs(gpu.runner._model, fail).forward
    with caplog.at_level(logging.WARNING, logger=graphs.__name__):
        for position in range(2):
            check(cpu, gpu, Part(0, position, [5 + position]))
    assert len(tries) == 1
    assert "decoding runs without captured graphs: RuntimeError: operation not permitted" in caplog.text


def test_sizes_are_few() -> None:
    assert sorted({graphs.padded_tokens(rows) for rows in range(1, 41)}) == [1, 2, 4, 8, 16, 24, 32, 40]
    assert sorted({graphs.blocks_for(blocks) for blocks in range(1, 100)}) == [8, 16, 32, 64, 128]
    assert all(graphs.padded_tokens(n) >= n and graphs.blocks_for(n) >= n for n in range(1, 300))
