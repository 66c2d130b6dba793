"""CUDA sources are accepted by compilers, though no GPU build is made here.

The tests build ``kernels/cuda`` with an emulation of CUDA, which has more functions in host code than the toolkit.
"""

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parent.parent.parent / "backend_cpp"
# Of .cu files, all of which take minutes: one with vectors of every type that rows are rounded to.
KERNELS = ("quantize/round_rows.cu",)
HOST_ONLY = ("-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-restrict")  # as in CMakeLists.txt


def toolkits() -> list[Path]:
    """Return the places where headers of CUDA and of its libraries may be, the wheels' last."""
    roots = [Path(os.environ["CUDA_HOME"])] if "CUDA_HOME" in os.environ else []
    wheels = Path(sysconfig.get_path("purelib")) / "nvidia"
    return [*roots, Path("/usr/local/cuda"), Path("/usr"), *sorted(wheels.glob("*"))]


def include_of(header: str) -> Path | None:
    """Return the folder of the first toolkit that has a header."""
    folders = (root / "include" for root in toolkits())
    return next((folder for folder in folders if (folder / header).is_file()), None)


def includes() -> list[str]:
    """Return the options by which a compiler finds CUDA's headers, and those of libraries that are there."""
    runtime = include_of("cuda_runtime.h")
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if runtime is None or compiler is None:
        pytest.skip("needs a C++ compiler and the headers of CUDA: the toolkit, or the wheels of requirements/dev.txt")
    found = [runtime, runtime / "cccl", include_of("cublasLt.h"), include_of("nccl.h")]
    folders = dict.fromkeys(str(folder) for folder in found if folder is not None)
    return [compiler, f"-I{SOURCES}", *(option for folder in folders for option in ("-isystem", folder))]


def complaint(command: Sequence[str], source: Path) -> str:
    """Return a compiler's error for a source; empty for one that it takes."""
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    return f"{source.name}:\n{done.stderr[:3000]}" if done.returncode else ""


def check_host_sources(*, of_cublaslt: bool) -> None:
    """Compile the sources of a GPU build that are no kernels, those that call cuBLASLt or the others."""
    command = [*includes(), *HOST_ONLY]
    sources = [*SOURCES.glob("device/cuda/*.cc"), *SOURCES.glob("kernels/cuda/*/*.cc")]
    sources = [source for source in sources if source.name.startswith("cublaslt_") == of_cublaslt]
    assert sources
    with ThreadPoolExecutor(max_workers=2) as compilers:
        rejected = [text for text in compilers.map(lambda source: complaint(command, source), sources) if text]
    assert not rejected, "\n".join(rejected)


def test_host_code_of_a_gpu_build_compiles() -> None:
    check_host_sources(of_cublaslt=False)


def test_host_code_that_calls_cublaslt_compiles() -> None:
    if include_of("cublasLt.h") is None:
        pytest.skip("needs cublasLt.h: of the CUDA toolkit, or of the wheel nvidia-cublas")
    check_host_sources(of_cublaslt=True)


@pytest.mark.parametrize("architecture", ["compute_80", "compute_90a"])
def test_kernels_compile_for_the_architectures_of_a_build(architecture: str, all_cases: bool, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("needs the CUDA toolkit: nvcc")
    command = [nvcc, "-std=c++20", "-ptx", f"-arch={architecture}", f"-I{SOURCES}", "--expt-relaxed-constexpr"]
    command += ["-Werror=all-warnings", "-Xcompiler=-Wall,-Wextra"]
    # Those of libraries: tests/tools/test_library_kernels.py.
    every = sorted(SOURCES.glob("kernels/cuda/*/*.cu"))
    sources = every if all_cases else [SOURCES / "kernels/cuda" / name for name in KERNELS]

    def error_of(source: Path) -> str:
        return complaint([*command, "-o", str(tmp_path / f"{source.parent.name}-{source.stem}.ptx")], source)

    with ThreadPoolExecutor(2) as compilers:
        rejected = [text for text in compilers.map(error_of, sources) if text]
    assert not rejected, "\n".join(rejected)
    assert len(every) > 30


def test_every_kernel_waits_for_the_launch_before_it() -> None:
    beginning = re.compile(r"__global__[^;{]*\) \{\n(.*?)\n\}", re.DOTALL)
    sources = [path for path in SOURCES.glob("kernels/cuda/*/*.cu*") if "__global__" in path.read_text()]
    kernels = {path.name: beginning.findall(path.read_text()) for path in sources}
    assert {path.name: path.read_text().count("__global__") for path in sources} == {
        name: len(found) for name, found in kernels.items()
    }
    assert len(sources) > 20
    assert not [name for name, found in kernels.items() if any("await_previous();" not in body for body in found)]
