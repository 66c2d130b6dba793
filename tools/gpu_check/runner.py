"""Time-limited runner of steps, each in its own process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.gpu_check.machine import ROOT
from tools.gpu_check.steps import Step
from tools.gpu_check.table import SELF_CHECK, printed

OK, LEFT_OUT = "ok", "left out"
RESULTS = "gpu_check.jsonl"
_MIN_SECONDS = 4.0  # in which a step may come to something
_TOLERANCE = 3  # times the expected seconds that a step may take where later ones leave it nothing
_TIMEOUT = 6.0  # seconds from the interrupt to the kill
_TAIL_LINES = 12
_NO_TESTS = 5  # pytest's exit status where it found none
_PASSED = re.compile(r"\b(\d+) passed\b")
_TRIAL = re.compile(r"turbomind: (?P<name>.+?) (?P<verdict>(?:agrees with|DIFFERS from|is not used, since) .+)")


class Runner:
    """One call of the check.

    ``seconds``: for everything.
    """

    def __init__(self, folder: Path, machine: Mapping[str, Any], seconds: float) -> None:
        # Where ``gpu_check.jsonl``, ``.log`` and ``.txt`` are written; those of an earlier call go
        self._folder, self._machine = folder, machine
        self._deadline = time.monotonic() + seconds
        for name in (RESULTS, "gpu_check.log"):
            (folder / name).write_text("", encoding="utf-8")

    def run(self, steps: Sequence[Step]) -> bool:
        """Run steps; return whether all that was begun went well."""
        is_well = True
        for number, step in enumerate(steps):
            remaining = self._deadline - time.monotonic()
            later = sum(other.seconds for other in steps[number + 1 :])
            limit = min(remaining, max(_TOLERANCE * step.seconds, remaining - later))
            seconds = 0.0
            if shutil.which(step.command[0]) is None:
                outcome = f"{LEFT_OUT}: there is no {step.command[0]}"
            elif limit < _MIN_SECONDS:
                outcome = f"{LEFT_OUT}: no time was left"
            else:
                print(f"== {step.name}", flush=True)
                outcome, seconds = self._run(step, limit)
            append(self._folder, step=step.name, outcome=outcome, seconds=round(seconds, 1))
            print(f"-- {step.name}: {outcome}, {seconds:.0f} s", flush=True)
            self.report()
            is_well = is_well and (outcome == OK or outcome.startswith(LEFT_OUT))
            if step.is_essential and outcome != OK:
                break
        return is_well

    def _run(self, step: Step, limit: float) -> tuple[str, float]:
        """Return how a step ended, and when; past its limit it is interrupted, so that it can say where it was."""
        begin = time.monotonic()
        log = self._folder / "step.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                step.command, cwd=ROOT, env=os.environ | step.environment | {"GPU_CHECK_STEP": step.name},
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        is_late = False
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            is_late = True
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_TIMEOUT)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and whatever it has started
            process.wait()
        seconds = time.monotonic() - begin
        output = log.read_bytes()
        log.unlink()
        with (self._folder / "gpu_check.log").open("ab") as file:
            file.write(f"\n== {step.name}: {' '.join(step.command)}\n".encode() + output)
        lines = output.decode(errors="replace").splitlines()
        for match in filter(None, map(_TRIAL.match, lines)):  # backend_cpp/device/cuda/self_check.cc
            append(self._folder, step=step.name, row=SELF_CHECK + match["name"].rstrip(","), value=match["verdict"])
        return (f"FAILED: not done after {seconds:.0f} s" if is_late else _outcome(step, process, lines)), seconds

    def report(self) -> str:
        """Write ``gpu_check.txt``; return it."""
        text = printed(self._machine, read(self._folder))
        (self._folder / "gpu_check.txt").write_text(text, encoding="utf-8")
        return text


def _outcome(step: Step, process: subprocess.Popen[bytes], lines: Sequence[str]) -> str:
    """Return how a step ended that ended by itself."""
    status = process.returncode
    if status != 0 and not (step.runs_tests and status == _NO_TESTS):
        print("\n".join(f"   | {line[:200]}" for line in lines[-_TAIL_LINES:]), flush=True)
        return f"FAILED: exit status {status}"
    if reason := next((line for line in reversed(lines) if line.startswith(LEFT_OUT)), ""):
        return reason
    counts = [int(match[1]) for line in lines if (match := _PASSED.search(line))]
    return f"{LEFT_OUT}: none of its tests ran" if step.runs_tests and not any(counts) else OK


def append(folder: Path, **content: Any) -> None:
    """Add a line to the results, also from another process."""
    with (folder / RESULTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(content) + "\n")


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of the results."""
    return [json.loads(line) for line in (folder / RESULTS).read_text(encoding="utf-8").splitlines()]
