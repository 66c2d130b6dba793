"""The check of a GPU machine, as far as it goes without one; with CUDA's emulation in the GPU's place it goes far."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kernels.device import built_modules
from tools.gpu_check import journal, machine, runner, stages
from tools.gpu_check.journal import Journal, append, read
from tools.gpu_check.machine import Gpu
from tools.gpu_check.stages import Stage, all_stages
from tools.gpu_check.table import TARGETS, Target, verdict
from tools.gpu_check.work import reports
from tools.gpu_check.work.context import Context, LeftOut
from tools.gpu_check.work.timeline import step_table

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "gpu_check.sh"


def check(*arguments: str | Path, python: Path | str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Call the script."""
    command = [SCRIPT, *arguments]
    variables = os.environ | {"PYTHON": str(python)}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)


def a_stage(name: str, program: str, **more: object) -> Stage:
    """Return a stage that runs a line of Python."""
    defaults: dict[str, object] = {"seconds": 20, "most": 40, "needs": (), "inputs": ()}
    return Stage(name, (sys.executable, "-c", program), **defaults | more)  # type: ignore[arg-type]


def run(folder: Path, these: list[Stage], seconds: float = 60, again: tuple[str, ...] = ()) -> dict[str, str]:
    """Run stages as one call of the check; return their outcomes as the report has them."""
    environment = os.environ | {"GPU_CHECK_FOLDER": str(folder)}
    kept = Journal(folder / "gpu_check.jsonl")
    runner.Runner(folder, kept, environment, {"name": "none"}, seconds, again).run(these)
    report = json.loads((folder / "gpu_check.json").read_text())
    return {stage["stage"]: stage["outcome"] for stage in report["stages"]}


def times_begun(folder: Path, name: str) -> int:
    lines = [json.loads(line) for line in (folder / "gpu_check.jsonl").read_text().splitlines()]
    return sum(line["stage"] == name and "begun" in line for line in lines)


# ---- before anything is begun ----


def test_what_is_missing_is_named_before_anything_is_built(tmp_path: Path) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # without installed packages
    bare.chmod(0o755)
    done = check(tmp_path / "out", python=bare)
    assert done.returncode == 2, done.stderr
    assert "missing: the Python module torch" in done.stdout
    assert not (tmp_path / "out" / "gpu_check.json").exists()


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
    assert machine.read_gpu().architecture == architecture


def test_a_gpu_that_is_too_old_or_silent_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"capability 7.5: 8.0 is the oldest"):
        _ = Gpu("T4", "7.5", "580.1", 16000).architecture
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ValueError, match="describes no GPU"):
        machine.read_gpu()


def test_headers_of_libraries_are_found_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.sysconfig, "get_path", lambda name: str(tmp_path / name))
    monkeypatch.setenv("TURBOMIND_FLASHINFER_DIR", str(tmp_path / "headers"))
    assert not machine.has_flashinfer()
    for folder in ("headers", "purelib/flashinfer/data"):
        header = tmp_path / folder / "include/flashinfer/attention/mla.cuh"
        header.parent.mkdir(parents=True)
        header.touch()
        assert machine.has_flashinfer()
        header.unlink()


# ---- time ----


def test_what_is_expected_of_all_stages_fits_into_nine_minutes() -> None:
    each = all_stages("90a-real", is_dry_run=False)
    assert runner.expected_seconds([stage for stage in each if not stage.is_extra], width=8) <= 540
    assert all(stage.seconds <= stage.most for stage in each)
    names = [stage.name for stage in each]
    assert len(set(names)) == len(names)
    assert {need for stage in each for need in stage.needs} <= set(names)


@pytest.mark.parametrize("call", stages.CALLS)
def test_each_call_with_all_that_is_extra_fits_into_nine_minutes(call: str) -> None:
    each = [stage for stage in all_stages("90a-real", is_dry_run=False, is_prebuilt=True) if stage.call in ("", call)]
    assert runner.expected_seconds(each, width=16) <= 540
    names = {stage.name for stage in each}
    assert {need for stage in each for need in stage.needs} <= names
    assert len(names) > 6


def test_a_group_takes_as_long_as_its_longest_stage_or_as_all_on_few_cores() -> None:
    each = [a_stage("a", "", seconds=4, group="x"), a_stage("b", "", seconds=2), a_stage("c", "", seconds=6, group="x")]
    assert runner.expected_seconds(each, width=8) == 8
    assert runner.expected_seconds(each, width=1) == 12


def test_stages_of_a_group_run_at_the_same_time_and_keep_their_output_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner.os, "cpu_count", lambda: 2)
    # Each waits for the other's file, so neither ends unless both run.
    program = (
        "import pathlib, time; pathlib.Path('{0}').touch()\nwhile not pathlib.Path('{1}').exists(): time.sleep(0.02)"
    )
    files = [str(tmp_path / name) for name in ("one", "two")]
    meeting = program + "\nprint('seen by {0}')"
    pair = [a_stage(name, meeting.format(*order), group="x") for name, order in (("a", files), ("b", files[::-1]))]
    assert run(tmp_path, [pair[0], a_stage("between", ""), pair[1]]) == {"a": "ok", "between": "ok", "b": "ok"}
    parts = (tmp_path / "gpu_check.log").read_text().split("\n== ")
    assert ["seen by" in part for part in parts] == [False, True, True, False]
    assert sorted(path.name for path in tmp_path.glob("*.log")) == ["gpu_check.log"]


def test_a_stage_that_hangs_is_interrupted_then_killed_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_LEAST_SECONDS", 0.1)
    monkeypatch.setattr(runner, "_TIMEOUT", 3.0)
    deaf = "import signal, subprocess, time; signal.signal(2, signal.SIG_IGN); p = subprocess.Popen(['sleep', '99']); "
    deaf += "print('child', p.pid, flush=True); time.sleep(99)"
    polite = "import time\ntry:\n time.sleep(99)\nexcept KeyboardInterrupt:\n print('I was here')"
    outcomes = run(tmp_path, [a_stage("deaf", deaf, most=3), a_stage("polite", polite, most=3)])
    assert all(outcome.startswith("FAILED: not done after") for outcome in outcomes.values())
    log = (tmp_path / "gpu_check.log").read_text()
    assert "I was here" in log
    child = int(log.split("child ")[1].split()[0])
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_time_that_is_not_used_goes_to_later_stages_and_what_finds_none_is_said(tmp_path: Path) -> None:
    slow = a_stage("slow", "import time; time.sleep(2)", seconds=0.4, most=30)
    assert run(tmp_path, [a_stage("quick", "", seconds=20), slow])["slow"] == "ok"
    other = a_stage("other", "")
    assert run(tmp_path, [other], seconds=3)["other"] == "left out: no time was left; call again"


def test_no_time_is_kept_for_what_is_extra(tmp_path: Path) -> None:
    slow = a_stage("slow", "import time; time.sleep(2)", seconds=0.3, most=30)
    assert run(tmp_path, [slow, a_stage("extra", "", seconds=20, is_extra=True)], seconds=20)["slow"] == "ok"
    kept = run(tmp_path, [slow, a_stage("needed", "", seconds=20)], seconds=20, again=("slow",))
    assert kept["slow"] == "left out: no time was left; call again"


# ---- continuing ----


def test_what_is_done_and_unchanged_is_not_repeated_unless_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, failing = a_stage("done", "print('x')"), a_stage("failing", "raise SystemExit(3)")
    report = run(tmp_path, [failing, done])
    assert report == {"failing": "FAILED: exit status 3", "done": "ok"}
    run(tmp_path, [failing, done, a_stage("new", "")])
    assert [times_begun(tmp_path, name) for name in ("failing", "done", "new")] == [2, 1, 1]
    lines = [json.loads(line) for line in (tmp_path / "gpu_check.jsonl").read_text().splitlines()]
    begun = [line["stage"] for line in lines if "begun" in line]
    assert begun == ["failing", "done", "new", "failing"]  # what failed waits for what was never tried
    run(tmp_path, [done], again=("done",))
    assert times_begun(tmp_path, "done") == 2
    versions = {"source": "first"}
    monkeypatch.setattr(journal, "_digest", versions.get)
    for version, times in (("first", 1), ("first", 1), ("second", 2)):
        versions["source"] = version
        run(tmp_path, [a_stage("compiled", "", inputs=("source",))])
        assert times_begun(tmp_path, "compiled") == times


def test_findings_are_there_at_once_and_those_of_a_repeated_stage_are_its_last(tmp_path: Path) -> None:
    lines = tmp_path / "gpu_check.jsonl"
    for value in (1.0, 2.0):
        append(lines, {"stage": "speed", "begun": "abc"})
        append(lines, {"stage": "speed", "row": f"value {value}", "value": value})
    with lines.open("a") as file:
        file.write('{"stage": "speed", "row": "cut o')
    found = read(lines)["speed"]
    assert (found.findings, found.outcome) == ({"value 2.0": 2.0}, "")


def test_lines_of_an_earlier_call_on_another_disk_count(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    run(first, [a_stage("done", "")])
    Journal(second / "gpu_check.jsonl", [first / "gpu_check.jsonl"])
    assert run(second, [a_stage("done", "")]) == {"done": "ok"}
    assert times_begun(second, "done") == 1


def test_a_call_that_is_ended_leaves_a_report_and_no_process(tmp_path: Path) -> None:
    variables = os.environ | {"PYTHON": sys.executable}
    command = [SCRIPT, tmp_path, "--dry-run", "--only", "speed of llama"]
    with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL) as process:
        lines = tmp_path / "gpu_check.jsonl"
        deadline = time.monotonic() + 60
        while not (lines.exists() and "begun" in lines.read_text()):
            assert time.monotonic() < deadline, "nothing began"
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    assert "speed of llama-8b" in (tmp_path / "gpu_check.txt").read_text()


def test_what_needs_a_stage_that_went_wrong_is_left_out(tmp_path: Path) -> None:
    broken, dependent = a_stage("build", "raise SystemExit(1)", group="build"), a_stage("tests", "", needs=("build",))
    outcomes = run(tmp_path, [broken, a_stage("alongside", "", group="build"), dependent])
    assert outcomes["tests"] == "left out: it needs build, which did not end well"
    assert outcomes["alongside"] == "ok"
    absent = Stage("memcheck", ("no-such-sanitizer",), 20, 40, needs=(), inputs=())
    assert run(tmp_path, [absent])["memcheck"] == "left out: there is no no-such-sanitizer"


def test_a_file_of_whose_tests_none_ran_is_not_called_right(tmp_path: Path) -> None:
    ends = {
        "right": ("3 skipped, 12 passed in 0.1s", 0),
        "skipped": ("12 skipped in 0.1s", 0),
        "not found": ("12 deselected in 0.1s", 5),
        "wrong": ("1 failed, 12 passed in 0.1s", 1),
    }
    each = [a_stage(name, f"print({text!r}); exit({status})", runs_tests=True) for name, (text, status) in ends.items()]
    none = "left out: none of its tests ran"
    assert run(tmp_path, each) == {"right": "ok", "skipped": none, "not found": none, "wrong": "FAILED: exit status 1"}
    found = read(tmp_path / "gpu_check.jsonl")
    assert [found[name].findings for name in ends] == [{"right: passed": 12}, {}, {}, {}]


# ---- the table ----


def test_a_promise_is_kept_from_its_value_on_and_what_was_not_measured_is_said() -> None:
    promise = Target("row", "text", 0.85)
    assert verdict(promise, 0.85) == ["text", "0.85", ">= 0.85", "met"]
    assert verdict(promise, 0.849)[-1] == "missed"
    assert verdict(promise, None) == ["text", "not measured", ">= 0.85", ""]
    assert verdict(Target("row", "text"), 3.0) == ["text", "3", "", ""]
    assert verdict(promise, 0.9, is_dry_run=True) == ["text", "(0.9)", ">= 0.85", "dry-run"]


def test_what_was_found_of_kernels_under_self_check_is_a_table(tmp_path: Path) -> None:
    said = "DIFFERS from ours, by 7.00 of what it may differ: it is not used"
    lines = [
        "turbomind: some kernel, rounded, agrees with ours, by 0.50 of what it may differ: it is used",
        f"turbomind: another {said}",
        "turbomind: a third is not used, since its self-check failed: no",
        "turbomind: nothing of that kind",
    ]
    run(tmp_path, [a_stage("speed", f"print({chr(10).join(lines)!r})")])
    text = (tmp_path / "gpu_check.txt").read_text()
    rows = text.split("kernel under self-check")[1].splitlines()[2:5]
    assert [" ".join(row.split()) for row in rows] == [
        "some kernel, rounded agrees with ours, by 0.50 of what it may differ: it is used",
        f"another {said}",
        "a third is not used, since its self-check failed: no",
    ]


def test_reports_are_left_by_each_profiler_that_makes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []
    locked: set[str] = set()

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        called.append(command)
        status = int(command[0] in locked)
        return subprocess.CompletedProcess(command, status, "", "ERR_NVGPUCTRPERM" if status else "")

    def found() -> object:
        append(tmp_path / "gpu_check.jsonl", {"stage": "reports", "begun": ""})
        reports.main(Context(tmp_path, "reports", is_dry_run=True), "awq-8b")
        return read(tmp_path / "gpu_check.jsonl")["reports"].findings["reports of awq-8b"]

    monkeypatch.setattr(reports.subprocess, "run", run)
    monkeypatch.setattr(reports.shutil, "which", lambda program: program)
    assert found() == ("awq-8b-decode.ncu-rep, awq-8b-decode.nsys-rep, awq-8b-prompt.ncu-rep, awq-8b-prompt.nsys-rep")
    assert [command[-2:] for command in called] == [["awq-8b", "decode"]] * 2 + [["awq-8b", "prompt"]] * 2
    assert called[0][called[0].index("--export") + 1] == str(tmp_path / "awq-8b-decode")
    locked.add("ncu")
    assert found() == "awq-8b-decode.nsys-rep, awq-8b-prompt.nsys-rep"
    locked.add("nsys")
    with pytest.raises(RuntimeError, match="NVGPUCTRPERM"):
        found()
    monkeypatch.setattr(reports.shutil, "which", lambda program: None)
    with pytest.raises(LeftOut, match="neither ncu nor nsys"):
        found()


# ---- a dry run ----


@pytest.mark.skipif("emulated" not in built_modules(), reason="CUDA's emulation is not built: run `make build-tests`")
def test_a_dry_run_goes_from_the_build_to_the_table(tmp_path: Path, *, all_cases: bool) -> None:
    few = ("build", "limits", "kernels alone")
    slow = ("speed of llama", "speed of PyTorch") if all_cases else ()
    done = check(tmp_path, "--dry-run", "--only", *few, *slow)
    report = json.loads((tmp_path / "gpu_check.json").read_text())
    assert done.returncode == 0, done.stdout + (tmp_path / "gpu_check.log").read_text()[-3000:]
    assert {stage["outcome"] for stage in report["stages"]} == {"ok"}
    measured = ("attention", "llama-8b") if all_cases else ("attention",)
    rows = {target.row for target in TARGETS if target.row.startswith(measured)}
    assert rows
    assert rows <= set(report["findings"])
    assert all(value for value in report["findings"].values())
    if all_cases:
        assert "agrees with ours" in report["findings"]["self-check of products of experts by an emulated library"]
    assert "dry-run" in (tmp_path / "gpu_check.txt").read_text()
    assert "cmake -S . -B build-cuda" in (tmp_path / "gpu_check.log").read_text()


def test_stages_of_kernels_name_files_that_are_there() -> None:
    each = [stage for stage in all_stages("90a-real", is_dry_run=False) if stage.name.startswith("tests/")]
    assert len(each) > 8
    assert all((stages.ROOT / stage.name).exists() for stage in each)


def test_a_timeline_says_what_each_kernel_adds_to_a_step() -> None:
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
    rows = [line.split() for line in step_table(events, 4).splitlines()[2:]]
    assert rows == [
        ["(a", "whole", "step)", "100.0"],
        ["(nothing", "runs)", "4.0"],
        ["sampling", "1.0", "70.0", "70.00"],
        ["product", "2.0", "24.0", "10.00"],
        ["attention", "1.0", "6.0", "8.00"],
    ]
