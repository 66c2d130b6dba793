"""Runs stages one after the other within a time, each in its own process, and keeps what came of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.gpu_check.journal import OK, Journal, fingerprint
from tools.gpu_check.machine import ROOT
from tools.gpu_check.stages import LEFT_OUT, Stage
from tools.gpu_check.table import SELF_CHECK, printed

_LEAST_SECONDS = 4.0  # in which a stage may come to something
_POLL_SECONDS = 0.05
_TOLERANCE = 3  # times the expected seconds that a stage may take where others leave it nothing
_TIMEOUT = 6.0  # seconds from the interrupt to the kill
_TAIL_LINES = 12
_NO_TESTS = 5  # pytest's exit status where it found none
_PASSED = re.compile(r"\b(\d+) passed\b")
_TRIAL = re.compile(r"turbomind: (?P<name>.+?) (?P<verdict>(?:agrees with|DIFFERS from|is not used, since) .+)")


@dataclass
class _Running:
    stage: Stage
    process: subprocess.Popen[bytes]
    limit: float
    begin: float
    log: Path

    @property
    def is_late(self) -> bool:
        return time.monotonic() - self.begin > self.limit


class Runner:
    """One call of the check.

    Parameters
    ----------
    folder
        Where ``gpu_check.json``, ``.jsonl``, ``.log`` and ``.txt`` are written.
    journal
        What was done before.
    environment
        Of the stages.
    machine
        The GPU's fields; results of another are not taken for this one's.
    seconds
        For everything.
    again
        Stages that are repeated though they are done.
    """

    def __init__(
        self,
        folder: Path,
        journal: Journal,
        environment: dict[str, str],
        machine: Mapping[str, Any],
        seconds: float,
        again: Sequence[str] = (),
    ) -> None:
        self._folder, self._journal, self._environment = folder, journal, environment
        self._machine, self._again = machine, again
        self._begin = time.monotonic()
        self._deadline = self._begin + seconds
        self._width = os.cpu_count() or 1
        self._here: dict[str, str] = {}  # outcomes of this call
        self._fingerprints: dict[str, str] = {}

    def run(self, stages: Sequence[Stage]) -> bool:
        """Run stages, first those that were never begun; return whether all that was begun here went well."""
        self._fingerprints = {stage.name: self._fingerprint(stage) for stage in stages}
        waiting = self._ordered(stages)
        self.report()
        while waiting:
            first = waiting[0]
            together = [stage for stage in waiting if stage is first or (first.group and stage.group == first.group)]
            waiting = [stage for stage in waiting if stage not in together]
            self._run_together(together, waiting)
        return all(outcome == OK or outcome.startswith(LEFT_OUT) for outcome in self._here.values())

    def _run_together(self, stages: Sequence[Stage], later: Sequence[Stage]) -> None:
        """Run the stages of a group, as many at a time as there are cores."""
        waiting, running = list(stages), list[_Running]()
        try:
            while waiting or running:
                while waiting and len(running) < self._width:
                    stage = waiting.pop(0)
                    if reason := self._reason_against(stage):
                        self._end(stage, reason)
                    elif (limit := self._limit(stage, later)) < _LEAST_SECONDS:
                        self._end(stage, f"{LEFT_OUT}: no time was left; call again")
                    else:
                        running.append(self._start(stage, limit))
                for one in list(running):
                    if one.process.poll() is not None or one.is_late:
                        running.remove(one)
                        self._finish(one)
                time.sleep(_POLL_SECONDS)
        finally:
            for one in running:
                _signal_all(one.process, signal.SIGKILL)

    # ---- what is done, and for how long ----

    def _fingerprint(self, stage: Stage) -> str:
        return fingerprint(stage.inputs, stage.name, " ".join(stage.command), json.dumps(dict(self._machine)))

    def _ordered(self, stages: Sequence[Stage]) -> list[Stage]:
        """Return what is to be done: in its order, but what went wrong before and is unchanged last."""
        known = self._journal.stages()
        new: list[Stage] = []
        failed: list[Stage] = []
        for stage in stages:
            done = known.get(stage.name)
            is_unchanged = done is not None and done.fingerprint == self._fingerprints[stage.name]
            is_wanted = stage.name in self._again
            if stage.is_always_run or is_wanted or not is_unchanged or done is None:
                new.append(stage)
            elif done.outcome == OK:
                print(f"   {stage.name}: done before, in {done.seconds:.0f} s", flush=True)
            else:
                failed.append(stage)
        return new + failed

    def _reason_against(self, stage: Stage) -> str:
        if shutil.which(stage.command[0], path=self._environment["PATH"]) is None:
            return f"{LEFT_OUT}: there is no {stage.command[0]}"
        for name in stage.needs:
            if self._here.get(name, OK) != OK:
                return f"{LEFT_OUT}: it needs {name}, which did not end well"
        return ""

    def _limit(self, stage: Stage, later: Sequence[Stage]) -> float:
        """Return the seconds a stage may take; what it keeps others from is done by the next call."""
        remaining = self._deadline - time.monotonic()
        if stage.is_essential:
            return min(remaining, stage.most)
        spare = remaining - expected_seconds([other for other in later if not other.is_extra], self._width)
        return min(remaining, stage.most, max(_TOLERANCE * stage.seconds, spare))

    # ---- processes ----

    def _start(self, stage: Stage, limit: float) -> _Running:
        print(f"== {stage.name}", flush=True)
        self._journal.write(stage=stage.name, begun=self._fingerprints[stage.name])
        log = self._folder / f"{re.sub('[^a-z0-9]+', '-', stage.name.lower())}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                stage.command,
                cwd=ROOT,
                env=self._environment | dict(stage.environment) | {"GPU_CHECK_STAGE": stage.name},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return _Running(stage, process, limit, time.monotonic(), log)

    def _finish(self, running: _Running) -> None:
        """End a stage; one past its limit is interrupted, so that it can report where it was, and then killed."""
        process, is_late = running.process, running.process.poll() is None
        try:
            if is_late:
                _signal_all(process, signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_TIMEOUT)
        finally:
            _signal_all(process, signal.SIGKILL)  # and whatever it has started
        process.wait()
        seconds = time.monotonic() - running.begin
        output = running.log.read_bytes()
        with (self._folder / "gpu_check.log").open("ab") as file:
            file.write(f"\n== {running.stage.name}: {' '.join(running.stage.command)}\n".encode() + output)
        running.log.unlink()
        lines = output.decode(errors="replace").splitlines()
        for name, verdict in self_checks(lines).items():
            self._journal.write(stage=running.stage.name, row=f"{SELF_CHECK}{name}", value=verdict)
        outcome = f"FAILED: not done after {seconds:.0f} s" if is_late else self._outcome(running, lines)
        self._end(running.stage, outcome, seconds)

    def _outcome(self, running: _Running, lines: Sequence[str]) -> str:
        """Return how a stage ended that ended by itself."""
        stage, status = running.stage, running.process.returncode
        if status != 0 and not (stage.runs_tests and status == _NO_TESTS):
            print("\n".join(f"   | {line[:200]}" for line in lines[-_TAIL_LINES:]), flush=True)
            return f"FAILED: exit status {status}"
        said = next((line for line in reversed(lines) if line.startswith(LEFT_OUT)), "")
        if said or not stage.runs_tests:
            return said or OK
        counts = [int(match[1]) for line in lines if (match := _PASSED.search(line))]
        if not any(counts):
            return f"{LEFT_OUT}: none of its tests ran"
        self._journal.write(stage=stage.name, row=f"{stage.name}: passed", value=counts[-1])
        return OK

    def _end(self, stage: Stage, outcome: str, seconds: float = 0.0) -> None:
        self._here[stage.name] = outcome
        if seconds:
            self._journal.write(stage=stage.name, outcome=outcome, seconds=round(seconds, 1))
        print(f"-- {stage.name}: {outcome}, {seconds:.0f} s", flush=True)
        self.report()

    # ---- results ----

    def report(self) -> str:
        """Write ``gpu_check.json`` and ``gpu_check.txt``, each whole; return the text."""
        known = self._journal.stages()
        stages = [
            {
                "stage": name,
                "outcome": self._here.get(name) or done.outcome or "FAILED: cut off",
                "seconds": done.seconds,
                "of_these_sources": done.fingerprint == self._fingerprints.get(name, done.fingerprint),
            }
            for name, done in known.items()
        ]
        stages += [
            {"stage": name, "outcome": outcome, "seconds": 0.0, "of_these_sources": True}
            for name, outcome in self._here.items()
            if name not in known
        ]
        findings = {row: value for done in known.values() for row, value in done.findings.items()}
        text = printed(self._machine, stages, findings)
        content = {
            "machine": dict(self._machine),
            "seconds": round(time.monotonic() - self._begin, 1),
            "stages": stages,
            "findings": findings,
        }
        for name, written in (("gpu_check.json", json.dumps(content, indent=1) + "\n"), ("gpu_check.txt", text)):
            half = self._folder / f"{name}.new"
            half.write_text(written, encoding="utf-8")
            half.replace(self._folder / name)
        return text


def expected_seconds(stages: Sequence[Stage], width: int) -> float:
    """Return how long stages are expected to take where ``width`` stages of a group run at a time."""
    groups: dict[str, list[float]] = {}
    for stage in stages:
        groups.setdefault(stage.group or stage.name, []).append(stage.seconds)
    return sum(max(max(each), sum(each) / width) for each in groups.values())


def self_checks(lines: Sequence[str]) -> dict[str, str]:
    """Return what a stage printed of kernels under self-check (``backend_cpp/device/cuda/self_check.cc``)."""
    found = (_TRIAL.match(line) for line in lines)
    return {match["name"].rstrip(","): match["verdict"] for match in found if match}


def _signal_all(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to a process that was started in its own session, and to all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def stop_on_sigterm() -> None:
    """Have a polite end of this program end its stage too, and leave a report."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
