"""Steps of each call, in order of importance; steps beyond the time limit are left out."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from tools.gpu_check.machine import BUILD, ROOT

# Of each call, for a lease of a GPU of fifteen minutes.
SECONDS = {"tests": 540.0, "measure": 540.0, "compare": 210.0}
DRY_RUN_FACTOR = 6  # times the seconds of a GPU, for the emulation on few cores
_MEASURED = ("llama-8b", "fp8-8b", "qwen3-moe", "awq-8b", "mixtral", "deepseek")
_COMPARED, _ROUNDS = ("llama-8b", "fp8-8b"), 2
_SUMS = (("llama-8b", "64"), ("fp8-8b", "prompt"), ("qwen3-moe", "64"), ("awq-8b", "1"))
_SANITIZED = (
    ("memcheck", "tests/kernels/test_attention.py", "decode_together or split_over"),
    ("racecheck", "tests/kernels/test_attention.py", "split_over"),
    ("memcheck", "tests/kernels/test_linear.py", "scales_of_outputs"),
    ("racecheck", "tests/kernels/test_linear.py", "scales_of_outputs"),
)
_SANITIZER = ("--error-exitcode", "99", "--target-processes", "all", "--print-limit", "20")
_EMULATED_ALONE = ("deferred", "faults", "steps")
_WORKERS = 4  # of pytest-xdist, where it is here


@dataclass(frozen=True)
class Step:
    """One process."""

    name: str
    command: tuple[str, ...]
    seconds: float  # how long it is expected to take; it may take longer where later steps do not need the time
    runs_tests: bool = False  # it calls pytest, some of whose tests have to pass
    environment: dict[str, str] = field(default_factory=dict)  # variables of its own
    is_essential: bool = False  # without its good end nothing else is done


def steps_of(what: str, builds: Sequence[Path] = (), *, is_dry_run: bool) -> list[Step]:
    """Return the steps of ``tests``, ``measure`` or ``compare``, the last one with its two builds."""
    device = "emulated" if is_dry_run else "gpu"
    steps = _compare(builds) if what == "compare" else _tests(device) if what == "tests" else _measure(device)
    slower = DRY_RUN_FACTOR if is_dry_run else 1
    return [replace(step, seconds=slower * step.seconds) for step in steps]


def build_step(architecture: str) -> Step:
    """Return the command that compiles the kernels; warnings are no errors here, since another compiler has others."""
    settings = {
        "CMAKE_BUILD_TYPE": "Release", "CMAKE_CUDA_ARCHITECTURES": architecture, "Python_EXECUTABLE": sys.executable,
        "TURBOMIND_CUDA": "ON", "TURBOMIND_TRITON": "OFF", "TURBOMIND_WERROR": "OFF",
    }  # fmt: skip
    options = " ".join(f"-D{name}={value}" for name, value in settings.items())
    script = f"cmake -S . -B {BUILD} -G Ninja {options} && cmake --build {BUILD} --target _turbomind _cuda_device"
    return Step("build", ("bash", "-c", script), 110, is_essential=True)


def _measure(device: str) -> list[Step]:
    return [
        _work("limits", 15, "limits"),
        *[_work(f"speed of {shape}", 30, "speed", shape) for shape in _MEASURED[:3]],
        _work("kernels", 60, "kernels"),
        _work("crowd", 45, "crowd"),
        *[_work(f"sums of {shape} {step}", 15, "sums", shape, step) for shape, step in _SUMS],
        *[_work(f"speed of {shape}", 25, "speed", shape) for shape in _MEASURED[3:]],
        *[_sanitized(*case, device) for case in _SANITIZED],
    ]


def _compare(builds: Sequence[Path]) -> list[Step]:
    sides = dict(zip(("old", "new"), builds, strict=True))
    return [
        replace(
            _work(f"{side} {turn}: {shape}", 26, "speed", shape),
            environment={"GPU_CHECK_SIDE": side, "GPU_CHECK_MODULE": str(build)},
        )
        for turn in range(1, _ROUNDS + 1)
        for shape in _COMPARED
        for side, build in sides.items()
    ]


def _tests(device: str) -> list[Step]:
    """Return files of tests: after a fault, nothing more can be asked of the process that had it."""
    kernels = sorted((ROOT / "tests" / "kernels").glob("test_*.py"))
    engine = sorted((ROOT / "tests" / "engine").glob("test_cuda_*.py"))
    engine = [path for path in engine if path.stem.removeprefix("test_cuda_") not in _EMULATED_ALONE]
    torch = sorted((ROOT / "tests" / "pytorch" / "kernels").glob("test_*.py"))
    return [
        _work("smoke test", 12, "smoke_test"),
        *[_test_file(path, device) for path in (*kernels, *engine) if path.stem != "test_tiles"],
        *[_sanitized(*case, device) for case in (*_SANITIZED, ("synccheck", "tests/kernels/test_moe.py", ""))],
        *[_test_file(path, "") for path in torch if path.stem != "test_compiled"],
    ]


def _work(name: str, seconds: float, module: str, *given: str) -> Step:
    return Step(name, (sys.executable, "-m", "tools.gpu_check.work", module, *given), seconds)


def _test_file(path: Path, device: str) -> Step:
    """Return a file of tests, of those that have the device in their names; empty: all."""
    alongside = ("-n", str(_WORKERS), "--dist", "load") if find_spec("xdist") is not None else ()
    cases = () if device == "emulated" else ("--all-cases",)
    name = str(path.relative_to(ROOT))
    return Step(name, (*_pytest(), *cases, *alongside, "-k", device, name), 14, True, {"OMP_NUM_THREADS": "2"})


def _sanitized(tool: str, path: str, sample: str, device: str) -> Step:
    chosen = f"{device} and ({sample})" if sample else device
    command = ("compute-sanitizer", "--tool", tool, *_SANITIZER, *_pytest(), "-x", "-k", chosen, path)
    return Step(f"{tool} of {Path(path).stem}", command, 15, True)


def _pytest() -> tuple[str, ...]:
    # The project's own settings name plugins that need not be here.
    settings = ("-c", os.devnull, "--rootdir=.", "--import-mode=importlib", "-p", "no:cacheprovider")
    return (sys.executable, "-m", "pytest", "-v", "--tb=short", *settings)
