"""What this package runs on: interpreter, machine, libraries, and our own compiled parts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import pickle
import platform
import shutil
import subprocess
from pathlib import Path

from lmdeploy.serve.errors import TritonStartError
from lmdeploy.serve.installation import OUR_BACKEND, find_tritonserver
from lmdeploy.version import __version__

_PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "nvidia-pytriton",
    "tritonclient",
    "fastapi",
    "uvicorn",
    "pydantic",
    "gradio",
    "openai",
)
# Instruction sets the kernels have variants for, as /proc/cpuinfo spells them.
_ISA_FLAGS = ("avx2", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


def collect() -> dict[str, str]:
    """Return what is found, name to text, in the order to show it."""
    cpu = _cpu()
    report = {
        "lmdeploy": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": platform.platform(),
        "cpu": cpu.get("model name", platform.processor() or "unknown"),
        "cpu cores": str(len(os.sched_getaffinity(0))),
        "cpu isa": " ".join(flag for flag in _ISA_FLAGS if flag in cpu.get("flags", "").split()),
        "memory": _memory(),
        "gpu": _gpus(),
        "tritonserver": _tritonserver(),
        "triton backend": _built(OUR_BACKEND / "libtriton_turbomind.so"),
        "engine module": "built" if importlib.util.find_spec("lmdeploy._turbomind") else "not built (run: make build)",
    }
    return report | {package: _version(package) for package in _PACKAGES}


def dump(report: dict[str, str], path: Path) -> None:
    """Write `report` to `path` as JSON, YAML or a pickle, whichever its ending says."""
    if path.suffix == ".json":
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    elif path.suffix == ".pkl":
        path.write_bytes(pickle.dumps(report))
    else:
        # A mapping of strings in JSON's quotes is YAML.
        lines = (f"{json.dumps(name)}: {json.dumps(value)}\n" for name, value in report.items())
        path.write_text("".join(lines), encoding="utf-8")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu() -> dict[str, str]:
    """Return the first processor's entry of /proc/cpuinfo; empty where there is none."""
    try:
        first = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _memory() -> str:
    pages, page_size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{pages * page_size / 2**30:.1f} GiB"


def _gpus() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "none found (no nvidia-smi)"
    query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"none found ({error})"
    return "; ".join(answer.stdout.splitlines()) or "none found"


def _tritonserver() -> str:
    try:
        return str(find_tritonserver().binary)
    except TritonStartError as error:
        return f"not found: {error}"


def _built(library: Path) -> str:
    return str(library) if library.is_file() else "not built (run: make build)"
