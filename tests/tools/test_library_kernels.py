"""Kernels of a CUDA build, read from machine code: their instructions, registers and work before they wait."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.kernel_resources import instructions_of, main, start_of

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


# As cuobjdump -sass prints it.
LISTING = """
		Function : plain
        /*0000*/                   LDC R1, c[0x0][0x28] ;          /* 0x00000a00ff017b82 */
                                                                   /* 0x000fe20000000800 */
        /*0010*/                   LDG.E.CONSTANT R2, desc[UR4][R2.64] ;  /* 0x0 */
        /*0020*/              @!P0 LDS.128 R4, [R8] ;              /* 0x0 */
        /*0030*/                   HMMA.16816.F32 R4, R4, R2, R4 ; /* 0x0 */
        /*0040*/               @P1 BRA 0x20 ;                      /* 0x0 */
        /*0050*/              @!P2 BRA P3, 0x10 ;                  /* 0x0 */
        /*0060*/                   EXIT ;                          /* 0x0 */
        /*0070*/                   BRA 0x70;                       /* 0x0 */
"""


def test_what_stands_before_a_wait_is_reported() -> None:
    never = start_of(instructions_of(LISTING)["plain"])
    assert (never.waits, never.reads, never.writes) == (0, {"LDG": 1}, {})
    waits = LISTING.replace("LDS.128 R4, [R8]", "ACQBULK")
    assert start_of(instructions_of(waits)["plain"]).reads == {"LDG": 1}
    twice = LISTING.replace("LDC R1, c[0x0][0x28]", "ACQBULK").replace("HMMA.16816.F32 R4, R4, R2, R4", "ACQBULK")
    start = start_of(instructions_of(twice)["plain"])
    assert (start.waits, start.reads) == (2, {})


@pytest.mark.parametrize(("wait", "status"), [("ACQBULK", 0), ("NOP", 1)])
def test_a_kernel_that_never_waits_is_named(
    wait: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listing = tmp_path / "listing"
    listing_read = LISTING.replace("plain", "_ZN9turbomind5plainEv").replace("LDC R1, c[0x0][0x28]", wait)
    listing.write_text(listing_read)
    program = tmp_path / "bin" / "cuobjdump"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nif [ "$1" = -sass ]; then cat {listing}; else touch kernel.sm_90a.cubin; fi\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert main([str(tmp_path)]) == 2
    (tmp_path / "some.cu.o").touch()
    assert main([str(tmp_path)]) == status
    assert ("plainEv: waits 0 times, before: 1 LDG WRONG" in capsys.readouterr().out) is (status == 1)
