"""Work of a CUDA build's kernels before they wait, read from machine code."""

import os
from pathlib import Path

import pytest

from tools.kernel_resources import instructions_of, main, start_of

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
