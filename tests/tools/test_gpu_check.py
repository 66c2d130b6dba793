"""The check of a GPU machine, as far as it goes without one; with CUDA's emulation in the GPU's place it goes far."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.device import built_modules
from tools.gpu_check import machine, runner
from tools.gpu_check.machine import Gpu
from tools.gpu_check.runner import Runner, append, read
from tools.gpu_check.steps import SECONDS, Step, build_step, steps_of
from tools.gpu_check.table import NOT_MEASURED, TARGETS, Target, printed, verdict
from tools.gpu_check.work.sums import step_table

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "gpu_check.sh"
needs_emulation = pytest.mark.skipif(
    "emulated" not in built_modules(), reason="CUDA's emulation is not built: run `make build-tests`"
)


def check(*arguments: str | Path, python: Path | str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Call the script."""
    variables = os.environ | {"PYTHON": str(python)}
    return subprocess.run([SCRIPT, *arguments], env=variables, capture_output=True, text=True, timeout=300, check=False)


def a_step(name: str, program: str, seconds: float = 20, **more: bool) -> Step:
    """Return a step that runs a line of Python."""
    return Step(name, (sys.executable, "-c", program), seconds, **more)  # type: ignore[arg-type]


def run(folder: Path, these: list[Step], seconds: float = 60) -> dict[str, str]:
    """Run steps as one call of the check; return their outcomes."""
    Runner(folder, {"name": "none"}, seconds).run(these)
    return {line["step"]: line["outcome"] for line in read(folder) if "outcome" in line}


# ---- before anything is begun ----


def test_what_is_missing_is_named_before_anything_is_built(tmp_path: Path) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without installed packages
    bare.chmod(0o755)
    done = check("measure", "--folder", tmp_path / "out", python=bare)
    assert done.returncode == 2, done.stderr
    assert "missing: the Python module torch" in done.stdout
    assert not (tmp_path / "out" / "gpu_check.txt").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["compare", "one.so"], "compare takes two builds"),
        (["measure", "one.so"], "measure takes no builds"),
        (["compare", "no.so", "none.so"], "no such file: no.so, none.so"),
        (["everything"], "invalid choice: 'everything'"),
    ],
)
def test_calls_that_mean_nothing_are_refused(given: list[str], message: str) -> None:
    done = check(*given)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("capability", "architecture"), [("8.0", "80-real"), ("8.9", "89-real"), ("9.0", "90a-real"), ("12.0", "120-real")]
)
def test_code_is_built_for_the_gpu_that_is_there(
    capability: str, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho 'NVIDIA X, {capability}, 580.1, 81559'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert machine.read_gpu() == Gpu("NVIDIA X", capability, "580.1", 81559)
    assert f"CMAKE_CUDA_ARCHITECTURES={architecture} " in build_step(machine.read_gpu().architecture).command[-1]


def test_a_gpu_that_is_too_old_or_silent_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"capability 7.5: 8.0 is the oldest"):
        _ = Gpu("T4", "7.5", "580.1", 16000).architecture
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ValueError, match="describes no GPU"):
        machine.read_gpu()


# ---- time ----


@pytest.mark.parametrize("what", SECONDS)
def test_what_is_expected_of_a_call_fits_into_its_time(what: str) -> None:
    steps = steps_of(what, [Path("old.so"), Path("new.so")] if what == "compare" else [], is_dry_run=False)
    assert sum(step.seconds for step in steps) <= SECONDS[what]
    names = [step.name for step in steps]
    assert len(names) > 6
    files = [name for name in names if name.startswith("tests/")]
    assert all((ROOT / name).exists() for name in files)
    assert len(files) > 20 or what != "tests"


def test_two_builds_take_turns() -> None:
    steps = steps_of("compare", [Path("a.so"), Path("b.so")], is_dry_run=False)
    sides = [(step.environment["GPU_CHECK_SIDE"], step.environment["GPU_CHECK_MODULE"]) for step in steps]
    assert sides == [("old", "a.so"), ("new", "b.so")] * (len(steps) // 2)


def test_a_step_that_hangs_is_interrupted_then_killed_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_MIN_SECONDS", 0.1)
    monkeypatch.setattr(runner, "_TIMEOUT", 1.0)
    deaf = "import signal, subprocess, time; signal.signal(2, signal.SIG_IGN); p = subprocess.Popen(['sleep', '99']); "
    deaf += "print('child', p.pid, flush=True); time.sleep(99)"
    polite = "import time\ntry:\n time.sleep(99)\nexcept KeyboardInterrupt:\n print('I was here')"
    outcomes = run(tmp_path, [a_step("deaf", deaf, 1), a_step("polite", polite, 20)], seconds=8)
    assert all(outcome.startswith("FAILED: not done after") for outcome in outcomes.values())
    log = (tmp_path / "gpu_check.log").read_text()
    assert "I was here" in log
    child = int(log.split("child ")[1].split()[0])
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_what_finds_no_time_or_no_program_is_said_and_nothing_follows_a_failed_build(tmp_path: Path) -> None:
    absent = Step("memcheck", ("no-such-sanitizer",), 20)
    assert run(tmp_path, [absent]) == {"memcheck": "left out: there is no no-such-sanitizer"}
    assert run(tmp_path, [a_step("late", "")], seconds=3) == {"late": "left out: no time was left"}
    broken = a_step("build", "raise SystemExit(1)", is_essential=True)
    assert run(tmp_path, [broken, a_step("tests", "")]) == {"build": "FAILED: exit status 1"}


def test_a_call_that_is_ended_leaves_a_report(tmp_path: Path) -> None:
    command = [SCRIPT, "measure", "--folder", tmp_path, "--dry-run", "--only", "speed of llama"]
    with subprocess.Popen(command, env=os.environ | {"PYTHON": sys.executable}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"speed of llama" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(180) == 143
    assert NOT_MEASURED in (tmp_path / "gpu_check.txt").read_text()


def test_a_file_of_whose_tests_none_ran_is_not_called_right(tmp_path: Path) -> None:
    ends = {
        "right": ("3 skipped, 12 passed in 0.1s", 0),
        "skipped": ("12 skipped in 0.1s", 0),
        "not found": ("12 deselected in 0.1s", 5),
        "wrong": ("1 failed, 12 passed in 0.1s", 1),
    }
    steps = [a_step(name, f"print({text!r}); exit({status})", runs_tests=True) for name, (text, status) in ends.items()]
    none = "left out: none of its tests ran"
    assert run(tmp_path, steps) == {"right": "ok", "skipped": none, "not found": none, "wrong": "FAILED: exit status 1"}


# ---- the report ----


def test_a_promise_is_kept_from_its_value_on_and_what_was_not_measured_is_said() -> None:
    promise = Target("row", "text", "limit", 0.85)
    assert verdict(promise, {"row": 8.5, "limit": 10.0}) == ["text", "0.85", ">= 0.85", "met"]
    assert verdict(promise, {"row": 8.49, "limit": 10.0})[-1] == "missed"
    for findings in ({}, {"row": 1.0}, {"limit": 1.0}):
        assert verdict(promise, findings) == ["text", NOT_MEASURED, ">= 0.85", ""]
    assert verdict(Target("row", "text"), {"row": 3.0}) == ["text", "3", "", ""]
    assert verdict(promise, {"row": 9, "limit": 10}, is_dry_run=True) == ["text", "(0.9)", ">= 0.85", "dry-run"]


def test_two_builds_are_compared_by_the_medians_of_their_turns(tmp_path: Path) -> None:
    for side, values in (("old", (10.0, 12.0)), ("new", (22.0, 11.0))):
        for value in values:
            append(tmp_path, step="x", row="decode, tokens/s", value=value, side=side)
    rows = printed({}, read(tmp_path)).splitlines()
    assert rows[-1].split() == ["decode,", "tokens/s", "11", "16.5", "1.500"]


def test_what_was_found_of_kernels_under_self_check_is_a_table(tmp_path: Path) -> None:
    message = "DIFFERS from ours, by 7.00 of what it may differ: it is not used"
    lines = [
        "turbomind: some kernel, rounded, agrees with ours, by 0.50 of what it may differ: it is used",
        f"turbomind: another {message}",
        "turbomind: a third is not used, since its self-check failed: no",
        "turbomind: nothing of that kind",
    ]
    run(tmp_path, [a_step("speed", f"print({chr(10).join(lines)!r})")])
    text = (tmp_path / "gpu_check.txt").read_text()
    rows = text.split("kernel under self-check")[1].splitlines()[2:5]
    assert [" ".join(row.split()) for row in rows] == [
        "some kernel, rounded agrees with ours, by 0.50 of what it may differ: it is used",
        f"another {message}",
        "a third is not used, since its self-check failed: no",
    ]


def test_sums_say_what_each_kernel_adds_to_a_step() -> None:
    """Each step: a product, 4 us of nothing, the product again, attention 2 us before that ends, sampling."""
    events = []
    for step in range(10):
        begin = 100.0 * step
        events += [
            {"name": "product", "ts": begin, "dur": 10.0},
            {"name": "product", "ts": begin + 14.0, "dur": 10.0},
            {"name": "attention", "ts": begin + 22.0, "dur": 8.0},
            {"name": "sampling", "ts": begin + 30.0, "dur": 70.0},
        ]
    one = [
        ["(a", "whole", "step)", "100.0"],
        ["(nothing", "runs)", "4.0"],
        ["sampling", "1.0", "70.0", "70.00"],
        ["product", "2.0", "24.0", "10.00"],
        ["attention", "1.0", "6.0", "8.00"],
    ]
    assert [line.split() for line in step_table(events, 4).splitlines()[2:]] == one
    assert [line.split() for line in step_table(events[:4], 0).splitlines()[2:]] == one


# ---- a dry run ----


@needs_emulation
def test_a_dry_run_measures_what_the_targets_are_about(tmp_path: Path, *, all_cases: bool) -> None:
    more = ("speed of llama", "speed of deepseek", "crowd", "sums of awq") if all_cases else ()
    done = check("measure", "--folder", tmp_path, "--dry-run", "--only", "limits", "kernels", *more)
    assert done.returncode == 0, done.stdout + (tmp_path / "gpu_check.log").read_text()[-3000:]
    found = {line["row"]: line["value"] for line in read(tmp_path) if "row" in line}
    measured = ("attention", "llama-8b", "deepseek", "crowd") if all_cases else ("attention",)
    rows = {target.row for target in TARGETS if target.row.startswith(measured)}
    assert rows
    assert rows <= found.keys()
    assert all(found.values())
    if all_cases:
        assert "agrees with ours" in found["self-check of products of experts by an emulated library"]
    assert "dry-run" in (tmp_path / "gpu_check.txt").read_text()
