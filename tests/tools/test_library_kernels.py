"""Kernels of FlashInfer in a CUDA build: their instructions and registers."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = sorted((ROOT / "backend_cpp" / "kernels" / "cuda").glob("*/flashinfer/*.cu"))
ARCHITECTURES = {"sm80": "80", "sm90": "90a"}
SPILL_BUDGET = 0  # bytes of a thread


def headers() -> Path | None:
    """Return FlashInfer's folder of headers."""
    named = os.environ.get("TURBOMIND_FLASHINFER_DIR")
    if named:
        return Path(named)
    spec = importlib.util.find_spec("flashinfer")
    return Path(spec.origin).parent / "data" if spec is not None and spec.origin else None


def compiler(name: str) -> str | None:
    """Return the path of a program of the CUDA toolkit."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/local/cuda/bin")


def test_there_are_kernels_for_both_architectures() -> None:
    assert {path.stem.rpartition("_")[2] for path in KERNELS} == set(ARCHITECTURES)


@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.stem)
def test_a_kernel_uses_its_architecture_and_keeps_to_its_registers(source: Path, tmp_path: Path) -> None:
    nvcc, ptxas, data = compiler("nvcc"), compiler("ptxas"), headers()
    if nvcc is None or ptxas is None:
        pytest.skip("needs the CUDA toolkit: nvcc and ptxas")
    if data is None:
        pytest.skip("needs FlashInfer's headers: pip install --no-deps -r requirements/cuda-libraries.txt")
    architecture = ARCHITECTURES[source.stem.rpartition("_")[2]]
    ptx = tmp_path / "kernel.ptx"
    includes = [
        "-I",
        str(ROOT / "backend_cpp"),
        "-isystem",
        str(data / "include"),
        "-isystem",
        str(data / "cutlass/include"),
    ]
    options = ["-std=c++20", "-O3", "--expt-relaxed-constexpr", "-Werror=all-warnings", "-Xcompiler=-Wall,-Wextra"]
    options.append("-diag-suppress=20012")  # as kernels/cuda/CMakeLists.txt says
    target = f"-arch=compute_{architecture}"
    subprocess.run([nvcc, *options, target, *includes, "-ptx", "-o", str(ptx), str(source)], check=True)
    assert ("wgmma.mma_async" in ptx.read_text()) == (architecture == "90a")
    assembled = subprocess.run(
        [ptxas, "-v", f"-arch=sm_{architecture}", "-o", str(tmp_path / "kernel.cubin"), str(ptx)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    spilled = [int(number) for number in re.findall(r"(\d+) bytes spill", assembled.stderr)]
    assert spilled, "ptxas names the kernels"
    assert max(spilled) <= SPILL_BUDGET
