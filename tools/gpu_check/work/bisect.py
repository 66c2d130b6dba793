"""Runs files of tests that failed again, each with one mechanism switched off, to find which of them is at fault."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

from tools.gpu_check.journal import read
from tools.gpu_check.machine import ROOT
from tools.gpu_check.work.context import JOURNAL, Context, LeftOut

_KERNELS = ("own", "torch", "graphs=off", "overlap=off")
_WITHOUT = {
    "as it is": {},
    **{
        f"with {kernels}": {"LMDEPLOY_CUDA_KERNELS": kernels}
        for kernels in ("own", "torch", "graphs=off", "overlap=off")
    },
    "with blocking launches": {"CUDA_LAUNCH_BLOCKING": "1"},
}
_PROCESSES = 8
_SECONDS = 60
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+.*?)(?: - .*)?$", re.MULTILINE)


def main(context: Context) -> None:
    """Note which tests fail under which conditions.

    Raises
    ------
    LeftOut
        None failed.
    """
    from tools.gpu_check.stages import pytest_command

    known = read(context.folder / JOURNAL)
    files = [name for name, done in known.items() if name.startswith("tests/") and done.outcome.startswith("FAILED")]
    if not files:
        raise LeftOut("no file of tests failed")
    device = "emulated" if context.is_dry_run else "gpu"

    def failures(case: tuple[str, str]) -> str:
        file, condition = case
        command = [*pytest_command(device), "-rfE", "-k", device, file]
        try:
            done = subprocess.run(
                command, env=os.environ | _WITHOUT[condition], cwd=ROOT, capture_output=True, text=True,
                timeout=_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"{file} {condition}: not done after {_SECONDS} s"
        names = [name.split("::", 1)[-1] for name in _FAILED.findall(done.stdout)]
        return f"{file} {condition}: exit status {done.returncode}, {len(names)} failed: {', '.join(names[:12])}"

    cases = [(file, condition) for file in files for condition in _WITHOUT]
    with ThreadPoolExecutor(_PROCESSES) as pool:
        context.note("bisect", "\n".join(pool.map(failures, cases)))
