"""What is done, in the order of what it teaches: whether it builds, runs and is right, then how fast it is."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace

from tools.gpu_check.machine import ROOT

LEFT_OUT = "left out"
DRY_RUN_FACTOR = 6  # times the seconds of a GPU, for the emulation on few cores
_ENGINE = ("CMakeLists.txt", "backend_cpp", "lmdeploy/turbomind", "lmdeploy/messages.py")
_CHECK = ("tools/gpu_check/shapes.py", "tools/gpu_check/checkpoints.py", "tools/gpu_check/cost.py")
_SHAPES_WITH_LIBRARIES = ("llama-8b", "fp8-8b", "qwen3-moe", "mixtral", "deepseek")
_WORKERS = 4
_KERNEL_TESTS_SECONDS = 58  # of all files together
_SANITIZED = {
    "memcheck": ("tests/kernels/test_attention.py", "decode_together or split_over"),
    "racecheck": ("tests/kernels/test_attention.py", "split_over"),
    "synccheck": ("tests/kernels/test_moe.py", ""),
}


@dataclass(frozen=True)
class Stage:
    """One process.

    Attributes
    ----------
    command
        Program and arguments.
    seconds, most
        How long it is expected to take, and what it may take at most, where others leave it their time.
    needs
        Stages without whose good end, in this call, it is left out.
    alongside
        The stage that it runs alongside; empty: none.
    inputs
        Paths of the project that its result depends on.
    is_essential
        It may take ``most`` though later ones are left out for it.
    is_always_run
        It makes something that the others need on this machine.
    is_extra
        It is for time that is left: none is kept for it.
    runs_tests
        It calls pytest, some of whose tests have to pass.
    environment
        Variables of its own.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    most: float
    needs: tuple[str, ...] = ("build",)
    alongside: str = ""
    inputs: tuple[str, ...] = _ENGINE
    is_essential: bool = False
    is_always_run: bool = False
    is_extra: bool = False
    runs_tests: bool = False
    environment: tuple[tuple[str, str], ...] = ()


def all_stages(architecture: str, *, is_dry_run: bool) -> list[Stage]:
    """Return every stage.

    Parameters
    ----------
    architecture
        What to build for (``Gpu.architecture``).
    is_dry_run
        Tests run on the emulation.
    """
    device = "emulated" if is_dry_run else "gpu"
    operators = _kernel_tests()
    each = [
        Stage(
            "build",
            (sys.executable, "-m", "tools.gpu_check.build", architecture),
            110,
            300,
            needs=(),
            is_essential=True,
            is_always_run=True,
        ),
        _work("limits", 15, 40, "limits", alongside="build", inputs=("tools/gpu_check/work/limits.py",)),
        _work("stand-in model", 12, 40, "stand_in", alongside="build", is_always_run=True, inputs=()),
        _work("smoke test", 12, 40, "smoke_test"),
        _work("libraries", 20, 120, "libraries"),
        *[_tests(name, device, _KERNEL_TESTS_SECONDS / len(operators), 60) for name in operators],
        _work("speed of llama-8b", 45, 120, "speed", "llama-8b"),
        _work("kernels alone", 15, 60, "kernels"),
        _tests("tests/engine/test_cuda_engine.py", device, 20, 120),
        _tests("tests/engine/test_cuda_sampling.py", device, 15, 90),
        _work("resources of kernels", 5, 30, "resources"),
        _work("speed of awq-8b", 22, 90, "speed", "awq-8b"),
        _work("speed of fp8-8b", 22, 90, "speed", "fp8-8b"),
        _work("speed of qwen3-moe", 22, 90, "speed", "qwen3-moe"),
        _work("speed of deepseek", 22, 90, "speed", "deepseek"),
        _work("speed of mixtral", 22, 90, "speed", "mixtral"),
        _work("crowd", 35, 120, "crowd"),
        _work("profile", 30, 90, "profile"),
        *[_sanitized(tool, *sample, device) for tool, sample in _SANITIZED.items()],
        _work("served", 12, 60, "served"),
        _work("transformers", 16, 90, "compared_with_transformers"),
        _work("full cache", 25, 150, "full_cache", is_extra=True),
        _without("overlap", "llama-8b", "LMDEPLOY_CUDA_OVERLAP"),
        *[_without("libraries", shape, "LMDEPLOY_CUDA_LIBRARIES") for shape in _SHAPES_WITH_LIBRARIES],
    ]
    slower = DRY_RUN_FACTOR if is_dry_run else 1
    return [replace(stage, seconds=slower * stage.seconds, most=slower * stage.most) for stage in each]


def _work(
    name: str,
    seconds: float,
    most: float,
    module: str,
    *arguments: str,
    alongside: str = "",
    inputs: tuple[str, ...] = (*_ENGINE, *_CHECK),
    is_always_run: bool = False,
    is_extra: bool = False,
    environment: tuple[tuple[str, str], ...] = (),
) -> Stage:
    return Stage(
        name,
        (sys.executable, "-m", "tools.gpu_check.work", module, *arguments),
        seconds,
        most,
        needs=() if alongside else ("build",),
        alongside=alongside,
        inputs=(*inputs, f"tools/gpu_check/work/{module}.py"),
        is_always_run=is_always_run,
        is_extra=is_extra,
        environment=environment,
    )


def _without(what: str, shape: str, switch: str) -> Stage:
    """Return the speed of a shape again, with something switched off."""
    name = f"{shape} without {what}"
    return _work(name, 25, 120, "speed", shape, f"without {what}", is_extra=True, environment=((switch, "0"),))


def _kernel_tests() -> list[str]:
    """Return the files of operators' tests that have something for a GPU, the most reporting first."""
    first = ["cuda_instructions", "linear", "attention", "ranks", "moe", "sampling", "scaled_linear", "elementwise"]
    there = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "kernels").glob("test_*.py")}
    ordered = [name for name in first if name in there] + sorted(there - {*first, "tiles"})
    return [f"tests/kernels/test_{name}.py" for name in ordered]


def _pytest(device: str) -> tuple[str, ...]:
    # The project's own settings name plugins that need not be here.
    settings = ("-c", os.devnull, "--rootdir=.", "--import-mode=importlib", "-p", "no:cacheprovider")
    return (sys.executable, "-m", "pytest", "-q", *(() if device == "emulated" else ("--all-cases",)), *settings)


def _tests(path: str, device: str, seconds: float, most: float) -> Stage:
    """Return a file of tests as a stage: after a fault, nothing more can be asked of the process that had it."""
    workers = ("-n", str(_WORKERS), "--dist", "load") if _has_xdist() else ()
    return Stage(
        path,
        (*_pytest(device), *workers, "-k", device, path),
        seconds,
        most,
        inputs=(*_ENGINE, "tests/kernels", path),
        runs_tests=True,
    )


def _has_xdist() -> bool:
    from importlib.util import find_spec

    return find_spec("xdist") is not None


def _sanitized(tool: str, path: str, sample: str, device: str) -> Stage:
    chosen = f"{device} and ({sample})" if sample else device
    return Stage(
        tool,
        (sys.executable, "-m", "tools.gpu_check.sanitizer", tool, *_pytest(device), "-x", "-k", chosen, path),
        10,
        60,
        inputs=(*_ENGINE, path),
        runs_tests=True,
    )
