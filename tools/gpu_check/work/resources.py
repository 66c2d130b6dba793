"""Registers and spills of every kernel, where the project's tool for that and what it needs are there."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

from tools.gpu_check.machine import BUILD, ROOT
from tools.gpu_check.work.context import Context, LeftOut

_TOOL = "tools.kernel_resources"


def main(context: Context) -> None:
    """Note the tool's table."""
    if context.is_rehearsal or importlib.util.find_spec(_TOOL) is None:
        raise LeftOut(f"there is no {_TOOL}, or nothing that was compiled for a GPU")
    command = [sys.executable, "-m", _TOOL, BUILD]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    context.note("resources of kernels", done.stdout)
