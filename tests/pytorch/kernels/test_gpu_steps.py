"""Steps on a GPU: which models get there, and that they bring what the CPU brings."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lmdeploy.pytorch import step_devices
from lmdeploy.pytorch.cpu_kernels import kernels
from lmdeploy.pytorch.nn import device as nn_device
from lmdeploy.pytorch.step_devices import GpuSteps, step_device
from tests.pytorch.kernels.conftest import check
from tests.pytorch.test_transformers_models import HIDDEN, VOCAB, make
from tests.support.adapters import make_adapter
from tests.support.tiny_models import make_tiny_llama
from tests.support.worker_steps import Part, StepDriver

STEPS = [
    [Part(0, 0, [5, 17, 400])],
    [Part(0, 3, [8]), Part(1, 0, [*range(20, 37)])],  # over the end of a block
    [Part(1, 17, [3]), Part(0, 4, [9])],
]


def test_steps_of_the_engine_bring_the_logits_of_the_cpu(
    tmp_path: Path, gpu_driver: Callable[..., StepDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny_llama(tmp_path, vocab_size=500, num_hidden_layers=1)
    runs_kernels = False
    cpu = StepDriver(tmp_path, 500, 32, dtype="float32", device="cpu")
    monkeypatch.setattr(nn_device, "runs_kernels", lambda x: runs_kernels or x.is_cuda)
    gpu = gpu_driver(tmp_path, 500, 32, dtype="float32")
    for parts in STEPS:
        runs_kernels = False
        expected = cpu.step(*parts)
        runs_kernels = True
        for native, reference in zip(gpu.step(*parts), expected, strict=True):
            assert native == pytest.approx(reference, abs=1e-4 * np.abs(reference).max())


@pytest.mark.alike(max_cases=1)
@pytest.mark.parametrize("name", ["OPTForCausalLM", "Qwen2ForCausalLM", "Cohere2ForCausalLM"])
def test_models_of_transformers_bring_the_logits_of_the_cpu(
    name: str, tmp_path: Path, gpu_driver: Callable[..., StepDriver]
) -> None:
    make(tmp_path / "model", name)
    adapter = make_adapter(tmp_path / "adapter", tmp_path / "model", targets=("q_proj",))
    cpu = StepDriver(tmp_path / "model", VOCAB, HIDDEN, dtype="float32", by_transformers=True, device="cpu")
    gpu = gpu_driver(tmp_path / "model", VOCAB, HIDDEN, dtype="float32", by_transformers=True)
    for driver in (cpu, gpu):
        driver.runner.set_adapter(1, str(adapter))
    assert gpu.runner._model.layers == cpu.runner._model.layers
    for parts in [*STEPS, [Part(2, 0, [5, 17, 400], adapter=1), Part(3, 0, [5, 17, 400])]]:
        shown = check(cpu, gpu, *parts)
    assert np.abs(shown[0] - shown[1]).max() > 1e-3


def test_block_tables_are_filled_up_with_zeros() -> None:
    spans = np.zeros((2, 8), np.int32)
    spans[:, 4], spans[:, 5] = [0, 3], [3, 1]  # first of the tables' entries, and how many
    table = GpuSteps(torch.device("cpu")).block_offsets(spans, np.array([7, 5, 9, 4], np.int32), 16)
    assert table.tolist() == [[7, 5, 9], [4, 0, 0]]


@pytest.mark.parametrize(
    ("gpus", "ranks", "reason"),
    [
        (0, 1, r"PyTorch .* \(CUDA .*\) finds no GPU, though there is driver 535.54.03"),
        (1, 2, "tp=2 needs a GPU for each rank, PyTorch finds 1"),
    ],
)
def test_what_cannot_run_on_a_gpu_runs_on_the_cpu_or_is_refused(
    gpus: int,
    ranks: int,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\n")
    monkeypatch.setattr(step_devices, "_DRIVER_FILE", version)
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(is_available=lambda: gpus > 0, device_count=lambda: gpus))
    assert step_device("auto", 0, ranks, kernels(1)).device.type == "cpu"
    assert re.search(f"the model runs on the CPU: {reason}", caplog.text)
    assert step_device("cpu", 0, ranks, kernels(1)).device.type == "cpu"
    with pytest.raises(ValueError, match=f"device_type must be cpu: {reason}"):
        step_device("cuda", 0, ranks, kernels(1))


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_takes_the_gpu_of_its_number(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(is_available=lambda: True, device_count=lambda: 2))
    for device in ("auto", "cuda"):
        chosen = step_device(device, rank, 2, kernels(1))
        assert chosen.device == torch.device("cuda", rank)
        assert chosen.kernels is None
