"""Kernels run on the GPU where there is one, else in Triton's interpreter: the same tests."""

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import lmdeploy.pytorch.kernels
from lmdeploy.pytorch import step_runner
from lmdeploy.pytorch.step_devices import GpuSteps
from tests.support.worker_steps import StepDriver

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
    """What makes a `StepDriver` whose steps run as on a GPU, on one where there is one."""

    def make(*args: Any, **options: Any) -> StepDriver:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step_runner, "step_device", lambda *_: GpuSteps(device))
            return StepDriver(*args, **options)

    return make
