"""The list of a CUDA build's kernels: read from machine code, and checked for spills."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tools.kernel_resources.__main__ import main
from tools.kernel_resources.cubins import kernels_in
from tools.kernel_resources.waits import instructions_of, start_of

USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function _ZN9turbomind12_GLOBAL__N_16tripleILi3EEEvPii:
  REG:40 STACK:72 SHARED:1040 LOCAL:0 CONSTANT[0]:756 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function plain:
  REG:18 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:540 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
SOURCE = """
namespace turbomind { namespace { template <int n> void triple(int* to, int by) { *to = n * by; } } }
extern "C" void plain(int* to) { turbomind::triple<3>(to, 4); }
"""
# As cuobjdump -sass prints it: an inner loop of three instructions in an outer one of five, and the end's idle loop.
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


@pytest.fixture
def cubin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an ELF file of two functions; a cuobjdump that knows them is first on PATH."""
    source = tmp_path / "source.cc"
    source.write_text(SOURCE)
    path = tmp_path / "build" / "some.sm_90a.cubin"
    path.parent.mkdir()
    options = ["-O0", "-ffunction-sections", "-fno-asynchronous-unwind-tables"]
    subprocess.run(["c++", "-c", *options, "-o", str(path), str(source)], check=True)
    program = tmp_path / "bin" / "cuobjdump"
    program.parent.mkdir()
    text = tmp_path / "usage.txt"
    text.write_text(USAGE)
    program.write_text(f"#!/bin/sh\ncat {text}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return path


def test_a_kernel_is_listed_with_what_it_takes(cubin: Path) -> None:
    listed = subprocess.run(["nm", "-S", str(cubin)], capture_output=True, text=True, check=True).stdout.split("\n")
    sizes = {line.split()[3]: int(line.split()[1], 16) for line in listed if line.count(" ") == 3}
    triple, plain = kernels_in(Path("cuobjdump"), cubin, "some")
    assert (triple.name, triple.registers, triple.stack, triple.shared) == ("triple<3>", 40, 72, 1040)
    assert (plain.name, plain.architecture, plain.stack) == ("plain", "sm_90a", 0)
    assert [triple.code, plain.code] == [sizes[triple.symbol], sizes["plain"]]


@pytest.mark.parametrize(
    ("limits", "status"),
    [([], 0), (["0"], 1), (["71"], 1), (["72"], 0), (["0", "triple<3>=72"], 0), (["72", "some.sm_90a=0"], 1)],
)
def test_spills_beyond_the_limit_fail_by_name(
    cubin: Path, capsys: pytest.CaptureFixture[str], limits: list[str], status: int
) -> None:
    written = cubin.parent / "kernels.json"
    arguments = [f"--limit={limit}" for limit in limits]
    assert main([str(cubin.parent), *arguments, "--json", str(written)]) == status
    printed = capsys.readouterr()
    assert ("triple<3> for sm_90a spills 72 bytes" in printed.err) == (status == 1)
    assert {kernel["name"] for kernel in json.loads(written.read_text())} == {"triple<3>", "plain"}


def test_a_build_without_kernels_is_no_success(cubin: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty"), "--limit", "0"]) == 2


def test_what_stands_before_a_wait_is_reported() -> None:
    never = start_of(instructions_of(LISTING)["plain"])
    assert (never.waits, never.reads, never.writes) == (0, {"LDG": 1}, {})
    waits = LISTING.replace("LDS.128 R4, [R8]", "ACQBULK")
    assert start_of(instructions_of(waits)["plain"]).reads == {"LDG": 1}
    twice = LISTING.replace("LDC R1, c[0x0][0x28]", "ACQBULK").replace("HMMA.16816.F32 R4, R4, R2, R4", "ACQBULK")
    start = start_of(instructions_of(twice)["plain"])
    assert (start.waits, start.reads, start.between) == (2, {}, {"LDG": 1})
