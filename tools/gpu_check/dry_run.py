"""Programs that a GPU machine has, for a dry run without one: each says what the real one would, and does no more."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

_NVIDIA_SMI = "echo 'Emulated H100, 9.0, 580.0, 81559'"
_COMPILER = "exit 0"
# Options, then the program.
_PROFILER = """
while [[ $1 == -* ]]; do
  case $1 in
    --force-overwrite) shift ;;
    --export) touch "$2.ncu-rep"; shift 2 ;;
    *) shift 2 ;;
  esac
done
"$@"
"""
_TIMELINE = """
shift
while [[ $1 == -* ]]; do
  if [[ $1 == --output ]]; then touch "$2.nsys-rep"; fi
  shift 2
done
"$@"
"""
_SANITIZER = """
while [[ $1 == -* ]]; do shift 2; done
"$@" && echo '========= ERROR SUMMARY: 0 errors'
"""


def stand_ins(folder: Path) -> None:
    """Write the programs into a folder: all that need a GPU, and of the others those that this machine lacks."""
    _write(folder / "nvidia-smi", _NVIDIA_SMI)
    _write(folder / "ncu", _PROFILER)
    _write(folder / "nsys", _TIMELINE)
    _write(folder / "compute-sanitizer", _SANITIZER)
    # The emulation is built already; what a real build runs is tried elsewhere (docs/internals/cuda.md).
    _write(folder / "cmake", 'echo "dry-run: cmake $*"')
    alongside = Path(sys.executable).parent
    for name in ("nvcc", "ninja"):
        if shutil.which(name) is None and not (alongside / name).exists():
            _write(folder / name, _COMPILER)


def _write(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/bash\n{script.strip()}\n")
    path.chmod(0o755)
