"""NCCL is opened when a model is spread over GPUs: one that is absent, too old or broken is named with what is needed.

The very source is compiled here with libraries that play NCCL; the emulation of CUDA has another in its place.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parent.parent.parent / "backend_cpp"
LIBRARY = "libnccl.so.2"
FUNCTIONS = ("ncclCommInitAll", "ncclAllReduce", "ncclAllGather", "ncclCommDestroy", "ncclCommAbort")
ADVICE = (
    ": install it (libnccl2, or the wheel nvidia-nccl-cu12 or nvidia-nccl-cu13 with its folder lib on "
    "LD_LIBRARY_PATH), or leave tp at 1\n"
)
MAIN = """
#include <cstdio>
#include "kernels/cuda/comm/nccl_api.h"
int main() {
  try {
    const turbomind::cuda::NcclApi& api = turbomind::cuda::nccl_api();
    std::printf("NCCL %s: %s\\n", api.version.c_str(), api.error_text(3));
  } catch (const turbomind::Error& error) {
    std::printf("%s\\n", error.what());
    return error.code() == turbomind::ErrorCode::kUnavailable ? 3 : 4;
  }
}
"""


def compile_cxx(*arguments: str | Path) -> None:
    """Call the system's C++ compiler."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    done = subprocess.run([compiler, "-std=c++20", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a program that opens NCCL as the engine does, and prints what comes of it."""
    folder = tmp_path_factory.mktemp("nccl")
    (folder / "main.cc").write_text(MAIN, encoding="utf-8")
    # CUDA's types alone are needed, which the emulation has.
    headers = ("-DTM_CUDA_EMULATED", f"-I{SOURCES}", f"-I{SOURCES / 'testing/cuda_emulated/toolkit'}")
    sources = (folder / "main.cc", SOURCES / "kernels/cuda/comm/nccl_api.cc")
    compile_cxx(*headers, "-Wno-unknown-pragmas", *sources, "-ldl", "-o", folder / "program")
    return folder / "program"


def make_library(folder: Path, version: int | None, functions: Sequence[str]) -> None:
    """Write a library that plays NCCL of a version, as ``ncclGetVersion`` has it; None: without that function."""
    text = "".join(f'extern "C" int {name}() {{ return 0; }}\n' for name in functions)
    text += 'extern "C" const char* ncclGetErrorString(int) { return "internal error"; }\n'
    if version is not None:
        text += f'extern "C" int ncclGetVersion(int* version) {{ *version = {version}; return 0; }}\n'
    (folder / "nccl.cc").write_text(text, encoding="utf-8")
    compile_cxx("-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", folder / "nccl.cc", "-o", folder / LIBRARY)


def opened(program: Path, folder: Path) -> tuple[int, str]:
    """Return the status of the program with the libraries of a folder, and what it prints."""
    done = subprocess.run(
        [program], env={"LD_LIBRARY_PATH": str(folder)}, capture_output=True, text=True, check=False, timeout=30
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(("version", "named"), [(20906, "2.9.6"), (21005, "2.10.5"), (23203, "2.32.3")])
def test_a_library_with_all_functions_is_used(program: Path, tmp_path: Path, version: int, named: str) -> None:
    make_library(tmp_path, version, FUNCTIONS)
    assert opened(program, tmp_path) == (0, f"NCCL {named}: internal error\n")


@pytest.mark.parametrize(
    ("version", "functions", "found"),
    [
        (2804, FUNCTIONS, "is NCCL 2.8.4"),
        (2307, FUNCTIONS[:-1], "is NCCL 2.3.7 and lacks ncclCommAbort"),
        (23203, FUNCTIONS[1:], "is NCCL 2.32.3 and lacks ncclCommInitAll"),
        (None, FUNCTIONS[:-1], "is of an unknown version and lacks ncclGetVersion, ncclCommAbort"),
    ],
)
def test_another_version_is_refused_in_a_sentence_with_both_versions(
    program: Path, tmp_path: Path, version: int | None, functions: Sequence[str], found: str
) -> None:
    make_library(tmp_path, version, functions)
    reported = f"tp over several GPUs needs NCCL 2.9.6 or later, but {tmp_path / LIBRARY} {found}{ADVICE}"
    assert opened(program, tmp_path) == (3, reported)


def test_without_the_library_the_error_says_how_to_install_it(program: Path, tmp_path: Path) -> None:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        reported = f"tp over several GPUs needs NCCL 2.9.6 or later, but {LIBRARY} was not found{ADVICE}"
        assert opened(program, tmp_path) == (3, reported)
    else:
        pytest.skip("this machine has NCCL where every program finds it")


def test_a_file_that_is_no_library_is_named_with_the_loaders_reason(program: Path, tmp_path: Path) -> None:
    (tmp_path / LIBRARY).write_bytes(b"no library")
    status, reported = opened(program, tmp_path)
    assert status == 3
    expected = f"tp over several GPUs needs NCCL 2.9.6 or later, but {LIBRARY} cannot be loaded ({tmp_path / LIBRARY}: "
    assert reported.startswith(expected)
    assert reported.endswith(f"){ADVICE}")
