"""Registers and spills of every kernel of the build."""

from __future__ import annotations

import subprocess
import sys

from tools.gpu_check.machine import BUILD, ROOT
from tools.gpu_check.work.context import Context, LeftOut


def main(context: Context) -> None:
    """Note the tool's table."""
    if context.is_dry_run:
        raise LeftOut("nothing was compiled for a GPU")
    command = [sys.executable, "-m", "tools.kernel_resources", BUILD]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "no kernels below" in done.stderr:
        raise LeftOut("the modules came along without their object files")
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    context.note("resources of kernels", done.stdout)
