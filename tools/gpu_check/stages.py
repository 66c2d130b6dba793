"""What is done, in the order of what it teaches: whether it builds, runs and is right, then how fast it is."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from tools.gpu_check.machine import ROOT

LEFT_OUT = "left out"
CALLS = ("correctness", "speed", "profile")  # what a lease of a GPU is for, nine minutes each
DRY_RUN_FACTOR = 6  # times the seconds of a GPU, for the emulation on few cores
_ENGINE = ("CMakeLists.txt", "backend_cpp", "lmdeploy/turbomind", "lmdeploy/messages.py")
_CHECK = ("tools/bench/shapes.py", "tools/gpu_check/checkpoints.py", "tools/gpu_check/cost.py")
_SHAPES_WITH_LIBRARIES = ("llama-8b", "fp8-8b", "qwen3-moe", "mixtral", "deepseek")
_REPORTED = ("llama-8b", "awq-8b", "fp8-8b", "qwen3-moe", "deepseek")
# Processes of pytest-xdist.
_WORKERS = {"test_attention": 4, "test_linear": 4, "test_moe": 2, "test_cuda_engine": 4, "test_cuda_drafts": 5}
_FEW_THREADS = (("OMP_NUM_THREADS", "2"),)  # of a process that others run alongside
_SANITIZED = {
    "memcheck": ("tests/kernels/test_attention.py", "decode_together or split_over"),
    "racecheck": ("tests/kernels/test_attention.py", "split_over"),
    "synccheck": ("tests/kernels/test_moe.py", ""),
}
_SANITIZER = ("--error-exitcode", "99", "--target-processes", "all", "--print-limit", "20")
_EMULATED_ALONE = ("deferred", "faults", "steps")
# Files whose tests launch every kernel, each under both tools in time that is left.
_EVERY_KERNEL = ("linear", "attention", "moe", "sampling", "scaled_linear", "elementwise", "lora", "recurrence")


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
    group
        Stages of one group run at the same time: none of them is a measurement, or the others need no GPU. Empty:
        alone.
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
    call
        To which of ``CALLS`` it belongs; empty: to each.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    most: float
    needs: tuple[str, ...] = ("build",)
    group: str = ""
    inputs: tuple[str, ...] = _ENGINE
    is_essential: bool = False
    is_always_run: bool = False
    is_extra: bool = False
    runs_tests: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    call: str = ""


def all_stages(architecture: str, *, is_dry_run: bool, is_prebuilt: bool = False) -> list[Stage]:
    """Return every stage.

    Parameters
    ----------
    architecture
        What to build for (``Gpu.architecture``).
    is_dry_run
        Tests run on the emulation.
    is_prebuilt
        The compiled modules came along.
    """
    device = "emulated" if is_dry_run else "gpu"
    build = (sys.executable, "-m", "tools.gpu_check.build", architecture, *(["--prebuilt"] if is_prebuilt else []))
    first, right = "build", "tests"
    each = [
        Stage("build", build, 5 if is_prebuilt else 110, 300, (), first, is_essential=True, is_always_run=True),
        _work("limits", 15, 40, "limits", group=first, inputs=("tools/gpu_check/work/limits.py",)),
        _work("stand-in model", 12, 40, "stand_in", group=first, is_always_run=True, inputs=()),
        *_of_call(
            "correctness",
            _work("smoke test", 12, 40, "smoke_test"),
            *[_tests(name, device, 40, 120, group=right) for name in [*_kernel_tests(), *_engine_tests()]],
            *[_sanitized(tool, tool, *sample, device, group=right) for tool, sample in _SANITIZED.items()],
            *[replace(_tests(name, "", 30, 120, group="PyTorch"), is_extra=True) for name in _torch_tests()],
            *[replace(stage, is_extra=True, seconds=60, most=150) for stage in _every_kernel_sanitized(device)],
        ),
        *_of_call(
            "speed",
            _work("speed of llama-8b", 35, 120, "speed", "llama-8b"),
            _work("kernels alone", 15, 60, "kernels"),
            _work("crowd", 35, 120, "throughput"),
            _work("speed of deepseek", 22, 90, "speed", "deepseek"),
            _work("speed of mixtral", 22, 90, "speed", "mixtral"),
            _work("speed of PyTorch's engine", 60, 150, "speed", "llama-8b", "pytorch"),
            _work("speed of awq-8b", 22, 90, "speed", "awq-8b"),
            _work("speed of fp8-8b", 22, 90, "speed", "fp8-8b"),
            _work("speed of qwen3-moe", 22, 90, "speed", "qwen3-moe"),
            _work("full cache", 25, 150, "full_cache", is_extra=True),
            _without("overlap", "llama-8b", "overlap=off"),
            *[_without("libraries", shape, "own") for shape in _SHAPES_WITH_LIBRARIES],
        ),
        *_of_call(
            "profile",
            _work("timeline of turbomind", 20, 60, "timeline", "turbomind", is_extra=True),
            _work("timeline of pytorch", 50, 150, "timeline", "pytorch", is_extra=True),
            *[_work(f"reports of {shape}", 60, 180, "reports", shape, is_extra=True) for shape in _REPORTED],
        ),
    ]
    slower = DRY_RUN_FACTOR if is_dry_run else 1
    return [replace(stage, seconds=slower * stage.seconds, most=slower * stage.most) for stage in each]


def _of_call(call: str, *stages: Stage) -> list[Stage]:
    return [replace(stage, call=call) for stage in stages]


def _work(
    name: str,
    seconds: float,
    most: float,
    module: str,
    *arguments: str,
    group: str = "",
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
        needs=() if group == "build" else ("build",),
        group=group,
        inputs=(*inputs, f"tools/gpu_check/work/{module}.py"),
        is_always_run=is_always_run,
        is_extra=is_extra,
        environment=environment,
    )


def _without(what: str, shape: str, kernels: str) -> Stage:
    """Return the speed of a shape again, with other kernels."""
    name, switch = f"without {what}", (("LMDEPLOY_CUDA_KERNELS", kernels),)
    return _work(f"{shape} {name}", 25, 120, "speed", shape, name, is_extra=True, environment=switch)


def _engine_tests() -> list[str]:
    """Return the files of tests of whole models on CUDA, but for those that the emulation alone can run."""
    paths = sorted((ROOT / "tests" / "engine").glob("test_cuda_*.py"))
    return [
        str(path.relative_to(ROOT)) for path in paths if path.stem.removeprefix("test_cuda_") not in _EMULATED_ALONE
    ]


def _kernel_tests() -> list[str]:
    """Return the files of operators' tests that have something for a GPU, the most reporting first."""
    first = ["cuda_instructions", "linear", "attention", "ranks", "moe", "sampling", "scaled_linear", "elementwise"]
    there = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "kernels").glob("test_*.py")}
    ordered = [name for name in first if name in there] + sorted(there - {*first, "tiles"})
    return [f"tests/kernels/test_{name}.py" for name in ordered]


def _torch_tests() -> list[str]:
    """Return the files of tests of the PyTorch engine's kernels and steps, which run on a GPU where there is one."""
    paths = (ROOT / "tests" / "pytorch" / "kernels").glob("test_*.py")
    return sorted(str(path.relative_to(ROOT)) for path in paths if path.stem != "test_compiled")


def pytest_command(device: str, *, is_sampled: bool = False) -> tuple[str, ...]:
    """Return what calls pytest for a device, without the project's settings; on a GPU with all cases, or a sample."""
    # The project's own settings name plugins that need not be here.
    settings = ("-c", os.devnull, "--rootdir=.", "--import-mode=importlib", "-p", "no:cacheprovider")
    cases = () if is_sampled or device == "emulated" else ("--all-cases",)
    return (sys.executable, "-m", "pytest", "-v", "--tb=short", *cases, *settings)


def _tests(path: str, device: str, seconds: float, most: float, group: str) -> Stage:
    """Return a file of tests as a stage: after a fault, nothing more can be asked of the process that had it.

    Its tests are those that have the device in their names; empty: all.
    """
    count = _WORKERS.get(Path(path).stem, 0) if _has_xdist() else 0
    return Stage(
        path,
        (*pytest_command(device), *(("-n", str(count), "--dist", "load") if count else ()), "-k", device, path),
        seconds,
        most,
        inputs=(*_ENGINE, "tests/kernels", path),
        group=group,
        runs_tests=True,
        environment=_FEW_THREADS,
    )


def _has_xdist() -> bool:
    from importlib.util import find_spec

    return find_spec("xdist") is not None


def _every_kernel_sanitized(device: str) -> list[Stage]:
    """Return each file of kernels under each tool, with a sample of its tests; of a dry run, one file."""
    files = _EVERY_KERNEL[-1:] if device == "emulated" else _EVERY_KERNEL
    tools = ("memcheck", "racecheck")
    return [
        _sanitized(f"{tool} of {name}", tool, f"tests/kernels/test_{name}.py", "", device, group="sanitizers")
        for name in files
        for tool in tools
    ]


def _sanitized(name: str, tool: str, path: str, sample: str, device: str, group: str) -> Stage:
    chosen = f"{device} and ({sample})" if sample else device
    pytest = pytest_command(device, is_sampled=True)
    return Stage(
        name,
        ("compute-sanitizer", "--tool", tool, *_SANITIZER, *pytest, "-x", "-k", chosen, path),
        10,
        60,
        inputs=(*_ENGINE, path),
        group=group,
        runs_tests=True,
        environment=_FEW_THREADS,
    )
