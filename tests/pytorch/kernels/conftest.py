"""Kernels run on the GPU where there is one, else in Triton's interpreter: the same tests."""

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lmdeploy.pytorch.kernels
from lmdeploy.pytorch import step_runner
from lmdeploy.pytorch.graphs import Captured, DecodingGraphs, Outputs, cuda_capture
from lmdeploy.pytorch.step_devices import GpuSteps
from tests.pytorch.test_transformers_models import HIDDEN, VOCAB, make
from tests.support.worker_steps import Part, StepDriver

HAS_TRITON = importlib.util.find_spec("triton") is not None

# Whether functions are interpreted is decided when they, and Triton's own, are first imported (by `transformers`, if a
# test before these did); parts of Triton ask again later. Processes that other tests start must not see the variable.
if HAS_TRITON and not torch.cuda.is_available():
    for name in [name for name in sys.modules if name.split(".")[0] == "triton" and not name.startswith("triton._C")]:
        del sys.modules[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        for module in pkgutil.iter_modules(lmdeploy.pytorch.kernels.__path__, "lmdeploy.pytorch.kernels."):
            importlib.import_module(module.name)
    from triton.runtime import interpreter as interpreted

    @lru_cache
    def _builtins(package: Any) -> list[str]:
        return [name for name, member in inspect.getmembers(package) if interpreted.tl.core.is_builtin(member)]

    def _patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        for name in _builtins(package):
            if interpreted.tl.core.is_builtin(member := getattr(package, name)):
                interpreted._patch_attr(package, name, member, builder, scope)

    # The interpreter's own goes through all of the language in each call of a function, half of all that it does.
    interpreted._patch_builtin = _patch_builtin


class WithoutTriton(pytest.Module):
    """Tests that cannot even be imported."""

    def collect(self) -> list[pytest.Item]:
        pytest.skip("the Triton language is not installed: pip install triton", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Leave tests out, with the reason, where there is no Triton."""
    return None if HAS_TRITON else WithoutTriton.from_parent(parent, path=module_path)


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are interpreted where there is no GPU."""
    if not torch.cuda.is_available():
        monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def random() -> torch.Generator:
    """Numbers that are the same in each run."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def gpu_driver(device: torch.device) -> Callable[..., StepDriver]:
    """Factory of a `StepDriver` whose steps run as on a GPU, on one where there is one."""

    def make(*args: Any, **options: Any) -> StepDriver:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step_runner, "step_device", lambda *_: GpuSteps(device))
            return StepDriver(*args, **options)

    return make


class Again:
    """Does what a captured graph does: runs on the same tensors, into the same tensors."""

    def __init__(self, run: Callable[[], Outputs]) -> None:
        self._run = run
        self.outputs = tuple(torch.full_like(output, torch.nan) for output in run())

    def replay(self) -> None:
        for kept, made in zip(self.outputs, self._run(), strict=True):
            kept.copy_(made)


@pytest.fixture
def captures() -> list[int]:
    """A number for each graph that is captured."""
    return []


@pytest.fixture
def drivers(
    tmp_path: Path,
    device: torch.device,
    gpu_driver: Callable[..., StepDriver],
    captures: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[StepDriver, StepDriver]:
    """A model on the CPU, and one whose decoding steps are captured."""
    make(tmp_path / "model", "Qwen2ForCausalLM", num_hidden_layers=1)
    cpu = StepDriver(tmp_path / "model", VOCAB, HIDDEN, dtype="float32", by_transformers=True, device="cpu")
    gpu = gpu_driver(tmp_path / "model", VOCAB, HIDDEN, dtype="float32", by_transformers=True)
    capture: Callable[[Callable[[], Outputs]], Captured] = cuda_capture() if device.type == "cuda" else Again

    def counted(run: Callable[[], Outputs]) -> Captured:
        captures.append(len(captures))
        return capture(run)

    monkeypatch.setattr(step_runner, "cuda_capture", lambda: counted)
    gpu.runner._forward = DecodingGraphs(gpu.runner._model, counted).forward
    return cpu, gpu


def check(cpu: StepDriver, gpu: StepDriver, *parts: Part) -> list[np.ndarray]:
    """Compare the logits of a step, and return them."""
    shown = gpu.step(*parts)
    for native, reference in zip(shown, cpu.step(*parts), strict=True):
        assert native == pytest.approx(reference, abs=1e-4 * np.abs(reference).max())
    return shown
