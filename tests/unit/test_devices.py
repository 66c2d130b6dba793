"""Devices: which there are, which kernels serve an operator, and the library that ranks of GPUs need."""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from lmdeploy import PytorchEngineConfig, TurbomindEngineConfig, _turbomind
from lmdeploy.cli.check_env import collect
from lmdeploy.turbomind.supported import reject_unsupported_engine

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("device", ["ascend", "maca", "camb"])
def test_a_device_there_is_no_code_for_is_refused_with_the_reason(device: str) -> None:
    with pytest.raises(
        ValueError, match=f"device_type must be cpu or cuda: there is no code for .* yet, got '{device}'"
    ):
        reject_unsupported_engine(PytorchEngineConfig(device_type=device))


def test_an_unknown_device_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="device_type must be cpu or cuda, got 'abacus'"):
        reject_unsupported_engine(PytorchEngineConfig(device_type="abacus"))
    with pytest.raises(ValueError, match="device must be one of 'auto', 'cpu', 'cuda', got 'ascend'"):
        TurbomindEngineConfig(device="ascend")


PAGE = ROOT / "docs" / "internals" / "cuda.md"
OPERATORS = {(operator["engine"], operator["name"]): operator for operator in _turbomind.kernel_operators()}


def test_the_page_shows_the_engines_table() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("### Order of trust")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| ([\w, ]+?) \| (.*?) ?\|$", section, re.MULTILINE)
    shown = {(engine, name): (order.split(", "), checked) for engine, name, order, checked in rows}
    assert shown == {key: (operator["order"], operator["checked"]) for key, operator in OPERATORS.items()}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", {}),
        (
            "own",
            {
                **{(engine, name): "own" for engine, name in OPERATORS if engine == "turbomind"},
                ("pytorch", "attention"): "own",
                ("pytorch", "codes"): "own",
            },
        ),
        ("torch", {("pytorch", name): "torch" for name in ("attention", "codes", "sampling", "graphs")}),
        ("graphs=off", {("turbomind", "graphs"): "off", ("pytorch", "graphs"): "off"}),
        ("sampling=torch,sampling=off", {("turbomind", "sampling"): "off", ("pytorch", "sampling"): "off"}),
        ("linear=own,scales=library", {("turbomind", "linear"): "own", ("turbomind", "scales"): "library"}),
        (
            "library,latents=own",
            {
                ("turbomind", name): "own" if name == "latents" else "library"
                for name in ("linear", "scales", "experts", "prompts", "latents")
            },
        ),
    ],
)
def test_the_environment_names_kernels(
    value: str, expected: dict[tuple[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", value)
    overrides = {key: _turbomind.requested_kernels(*key) for key in OPERATORS}
    assert {key: kernels for key, kernels in overrides.items() if kernels is not None} == expected


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("cublas", "cublas is not library, own or torch"),
        ("off", "off is not library, own or torch"),
        ("own,,", " is not library, own or torch"),
        ("linear=fast", "fast is not library, own or torch, nor off"),
        ("lineer=own", "there is no operator lineer"),
        ("prompts=torch", "prompts can be library, own, not torch"),
    ],
)
def test_a_value_that_says_nothing_is_refused(value: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", value)
    with pytest.raises(ValueError, match=f"^LMDEPLOY_CUDA_KERNELS is {value}: {reason}"):
        _turbomind.requested_kernels("turbomind", "graphs")
    assert collect()["GPU kernels"] == f"LMDEPLOY_CUDA_KERNELS is {value}: {reason}"


def test_check_env_shows_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMDEPLOY_CUDA_KERNELS", "scales=own")
    report = collect()
    lines = {key: report[f"GPU kernels, {key[0]} {key[1]}"] for key in OPERATORS}
    order = "library, else own (compared with our kernel at start)"
    assert lines["turbomind", "latents"] == order
    assert lines["turbomind", "scales"] == f"own, as LMDEPLOY_CUDA_KERNELS says; otherwise {order}"


SOURCES = ROOT / "backend_cpp"
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
