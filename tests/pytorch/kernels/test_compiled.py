"""Every kernel compiles for GPUs, also where there is none: a compiler does not take all that the interpreter does.

Its own process, without the interpreter, calls the operators with a driver that only compiles.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
MAX_SPILLED = 16  # bytes: a register or two are nothing
CAPABILITY = 89  # the oldest that has all the types


def test_all_kernels_compile_within_the_registers() -> None:
    program = Path(__file__).with_name("compile_kernels.py")
    done = subprocess.run(
        [sys.executable, str(program), str(CAPABILITY)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr
    compiled = [line.split() for line in done.stdout.splitlines()]
    modules = {path.stem for path in (ROOT / "lmdeploy/pytorch/kernels").glob("*.py")}
    assert {line[0] for line in compiled} == modules - {"__init__", "cache_layout", "rounding"}
    assert not [line for line in compiled if int(line[2]) > MAX_SPILLED]
