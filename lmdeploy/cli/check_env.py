"""``lmdeploy check_env``: environment report for bug reports."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import pickle
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lmdeploy.cli.checkpoint_report import checkpoint_report, model_program
from lmdeploy.distribution import PACKAGE, upstream_elsewhere
from lmdeploy.version import __version__

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

FORMATS = (".json", ".yml", ".yaml", ".pkl")
_MISSING = "Not Found"
_TIMEOUT = 20.0  # seconds for a program to say its version
_PACKAGES = {  # the name shown, and the distribution's
    name: name.lower()
    for name in "TorchVision transformers gradio fastapi pydantic triton tokenizers numpy nvidia-pytriton tritonclient "
    "uvicorn openai".split()
}
# Instruction sets the kernels have variants for, as /proc/cpuinfo spells them.
_ISA_FLAGS = "avx2 fma avx512f avx512bw avx512_vnni avx512_bf16 avx_vnni amx_int8 amx_bf16 asimddp i8mm".split()


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "check_env",
        help="Show versions and hardware, for bug reports.",
        description="Show versions, hardware and kernels of this installation, for bug reports.",
    )
    parser.add_argument(
        "--dump-file",
        type=_dump_file,
        metavar="FILE",
        help=f"Also write the output to this file: {', '.join(FORMATS)}.",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="Also show what is read of a model and from which of its files: end tokens, chat template, vocabulary, "
        "rope, quantization, ignored files, memory of its layers.",
    )
    parser.add_argument(
        "--program",
        metavar="MODEL",
        help="Also show what the engine computes in a step of this model: the operations of each layer, in order.",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report, a ``key: value`` line each; return the exit status."""
    report = collect()
    if args.model is not None:
        report |= checkpoint_report(args.model)
    if args.program is not None:
        report["program"] = model_program(args.program)
    for name, value in report.items():
        print(f"{name}: {value}")
    if args.dump_file is not None:
        try:
            dump(report, args.dump_file)
        except OSError as error:
            print(f"lmdeploy check_env: {args.dump_file} cannot be written ({error.strerror})", file=sys.stderr)
            return 1
    return 0


def collect() -> dict[str, str]:
    """Return the findings by name, in display order; missing ones read ``Not Found``."""
    cpu = _cpu()
    gpus = _says("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    return {
        "sys.platform": sys.platform,
        "Python": sys.version.replace("\n", " "),
        "system": platform.platform(),
        "cpu": cpu.get("model name", platform.processor() or "unknown"),
        "cpu cores": str(len(os.sched_getaffinity(0))),
        "cpu isa": " ".join(flag for flag in _ISA_FLAGS if flag in cpu.get("flags", cpu.get("Features", "")).split()),
        "memory": _memory(),
        "CUDA available": str(gpus is not None),
        **{f"GPU {index}": gpu for index, gpu in enumerate((gpus or "").splitlines())},
        **_compilers(),
        **_torch(),
        "LMDeploy": _lmdeploy_version(),
        **_upstream(),
        **{name: _version(package) for name, package in _PACKAGES.items()},
        "tritonserver": _tritonserver(),
        **_our_parts(),
        "NVIDIA Topology": _says("nvidia-smi", "topo", "-m") or _MISSING,
    }


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


def _dump_file(text: str) -> Path:
    path = Path(text)
    if path.suffix not in FORMATS:
        raise argparse.ArgumentTypeError(f"the file must end in one of {', '.join(FORMATS)}, got {text}")
    return path


def _says(program: str, *arguments: str) -> str | None:
    """Return the output of a program; None where it is missing, fails or is silent."""
    path = shutil.which(program)
    if path is None:
        return None
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=_TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _compilers() -> dict[str, str]:
    default = Path("/usr/local/cuda")
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or (str(default) if default.is_dir() else "")
    nvcc = _says(str(Path(home, "bin", "nvcc")) if home else "nvcc", "--version")
    return {
        "CUDA_HOME": home or _MISSING,
        "NVCC": nvcc.splitlines()[-1] if nvcc else _MISSING,
        "GCC": (_says("gcc", "--version") or _MISSING).splitlines()[0],
    }


def _torch() -> dict[str, str]:
    try:
        import torch
    except (ImportError, OSError) as error:  # not installed, or one of its libraries is missing
        reason = _MISSING if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({error})"
        return {"PyTorch": reason, "PyTorch compiling details": _MISSING}
    return {"PyTorch": torch.__version__, "PyTorch compiling details": torch.__config__.show().strip()}


def _lmdeploy_version() -> str:
    """Return the version, and the commit if this is a checkout."""
    root = Path(__file__).parents[2]
    commit = _says("git", "-C", str(root), "rev-parse", "--short", "HEAD") if (root / ".git").exists() else None
    return __version__ + (f"+{commit}" if commit else "")


def _upstream() -> dict[str, str]:
    """Return the installed version of upstream's distribution, whose package has the same name."""
    found = upstream_elsewhere()
    note = f"{found}; the first folder of sys.path that has a package lmdeploy is imported, here {PACKAGE}"
    return {"upstream's distribution lmdeploy": note} if found else {}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return _MISSING


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


def _tritonserver() -> str:
    from lmdeploy.serve.errors import TritonStartError
    from lmdeploy.serve.installation import find_tritonserver

    try:
        return str(find_tritonserver().binary)
    except TritonStartError as error:
        return f"{_MISSING}: {error}"


def _our_parts() -> dict[str, str]:
    from lmdeploy.serve.installation import OUR_BACKEND

    library = OUR_BACKEND / "libtriton_turbomind.so"
    not_built = "not built (run: make build)"
    return {
        "triton backend": str(library) if library.is_file() else not_built,
        "engine module": "built" if importlib.util.find_spec("lmdeploy._turbomind") else not_built,
        "cpu kernels": _kernels() if importlib.util.find_spec("lmdeploy._turbomind") else not_built,
        **(_gpu_kernels() if importlib.util.find_spec("lmdeploy._turbomind") else {}),
    }


def _gpu_kernels() -> dict[str, str]:
    """Return the GPU kernels of each operator, in the order of trust, a line per operator and engine."""
    from lmdeploy import _turbomind

    lines = {}
    for operator in _turbomind.kernel_operators():
        text = ", else ".join(operator["order"])
        if operator["checked"]:
            text += f" (compared with {operator['checked']} at start)"
        try:
            override = _turbomind.requested_kernels(operator["engine"], operator["name"])
        except ValueError as error:
            return {"GPU kernels": str(error)}
        if override is not None:
            text = f"{override}, as LMDEPLOY_CUDA_KERNELS says; otherwise {text}"
        lines[f"GPU kernels, {operator['engine']} {operator['name']}"] = text
    return lines


def _kernels() -> str:
    """Return the engine's table of kernels, and those that `LMDEPLOY_CPU_ISA` may name."""
    from lmdeploy import _turbomind

    try:
        return f"{_turbomind.cpu_isa()} (LMDEPLOY_CPU_ISA may be one of {', '.join(_turbomind.cpu_isas())})"
    except RuntimeError as error:  # it names one that is not here
        return str(error)
