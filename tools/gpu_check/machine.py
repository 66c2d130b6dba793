"""Description of the machine: its GPU, its tools, and missing ones."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = "build-cuda"
MODULES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "jinja2", "pytest")
_FIELDS = ("name", "compute_cap", "driver_version", "memory.total")
_OLDEST = 8.0
_HOPPER = "9.0"


@dataclass(frozen=True)
class Gpu:
    """A GPU as ``nvidia-smi`` describes it."""

    name: str
    capability: str  # the compute capability, ``9.0`` for example
    driver: str
    memory_mib: int  # all of its memory

    @property
    def architecture(self) -> str:
        """CMake's name of its machine code; of Hopper with the instructions that only Hopper has.

        Raises `ValueError` if the GPU is older than what is supported.
        """
        if float(self.capability) < _OLDEST:
            raise ValueError(f"{self.name} has compute capability {self.capability}: 8.0 is the oldest supported")
        return f"{self.capability.replace('.', '')}{'a' if self.capability == _HOPPER else ''}-real"

    def described(self) -> dict[str, Any]:
        """Return its fields for a report."""
        return asdict(self) | {"architecture": self.architecture}


def read_gpu() -> Gpu:
    """Return the first GPU of the machine.

    Raises `ValueError` if there is none, or what ``nvidia-smi`` says cannot be read.
    """
    query = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
        name, capability, driver, memory = (word.strip() for word in done.stdout.splitlines()[0].split(","))
        return Gpu(name, capability, driver, int(memory))
    except (OSError, subprocess.SubprocessError, IndexError, ValueError) as error:
        raise ValueError(f"nvidia-smi describes no GPU: {error}") from error


def missing(*, builds: bool) -> list[str]:
    """Return the modules, programs and headers that a measurement, and before it a build, would miss here."""
    modules = (*MODULES, *(("pybind11",) if builds else ()))
    found = [f"the Python module {name}" for name in modules if importlib.util.find_spec(name) is None]
    programs = ("nvidia-smi", *(("cmake", "ninja", "nvcc", "c++") if builds else ()))
    found += [f"the program {name}" for name in programs if shutil.which(name) is None]
    if builds and not Path(sysconfig.get_path("include"), "Python.h").exists():
        found.append("Python.h (of the package python3-dev)")
    return found


def environment(folder: Path, programs: str, *, is_dry_run: bool) -> dict[str, str]:
    """Return the environment of steps: programs alongside Python and of the toolkit, libraries of NVIDIA's wheels.

    ``programs``: a folder that comes first.
    """
    changed = dict(os.environ)
    alongside = str(Path(sys.executable).parent)
    changed["PATH"] = os.pathsep.join([programs, alongside, changed.get("PATH", ""), "/usr/local/cuda/bin"])
    libraries = [str(path) for path in sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/lib"))]
    changed["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [changed.get("LD_LIBRARY_PATH", ""), *libraries]))
    changed["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), changed.get("PYTHONPATH", "")]))
    changed |= {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", "GPU_CHECK_FOLDER": str(folder)}
    changed.setdefault("LMDEPLOY_CACHE", str(ROOT / BUILD / "cache"))
    changed["GPU_CHECK_DRY_RUN"] = "1" if is_dry_run else ""
    return changed


def write_stand_ins(folder: Path) -> None:
    """Write programs that a dry run takes in the GPU's place: each says what the real one would, and does no more."""
    for name, script in _STAND_INS.items():
        path = folder / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)


_STAND_INS = {
    "nvidia-smi": "echo 'Emulated H100, 9.0, 580.0, 81559'",
    # Options, then the program.
    "compute-sanitizer": """while [[ $1 == -* ]]; do shift 2; done; "$@" && echo '===== ERROR SUMMARY: 0 errors'""",
}
