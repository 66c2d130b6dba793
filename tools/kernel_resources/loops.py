"""Loops of a kernel in machine code, and of what instructions they are."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_FUNCTION = re.compile(r"Function : (\S+)")
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)([^;]*);")
_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")
# What is distinguished; the rest is "other".
KINDS = {
    "tensor": ("HMMA", "IMMA", "QMMA", "HGMMA", "IGMMA", "QGMMA"),
    "from shared": ("LDS", "LDSM"),
    "to shared": ("STS", "STSM"),
    "copies": ("LDGSTS", "UBLKCP", "UTMALDG"),
    "from memory": ("LDG", "LD", "LDL"),
    "floats": ("FADD", "FFMA", "FMUL", "FMNMX", "HADD2", "HFMA2", "HMUL2", "MUFU", "F2FP", "F2F", "I2F", "I2FP"),
    "bits": ("LOP3", "PRMT", "SHF", "SHL", "SHR"),
}
_KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}


@dataclass(frozen=True)
class Loop:
    """A loop: from the target of a backward branch to the branch.

    Attributes
    ----------
    begin, end
        Addresses of the first instruction and of the branch, in bytes.
    counts
        Instructions of each kind, those of loops inside of it too.
    is_innermost
        Whether there is no loop inside of it.
    """

    begin: int
    end: int
    counts: Counter[str]
    is_innermost: bool

    @property
    def total(self) -> int:
        """All its instructions."""
        return self.counts.total()


def instructions_of(listing: str) -> dict[str, list[tuple[int, str, str]]]:
    """Return the instructions of each function of a listing: address, name without modifiers, operands."""
    functions: dict[str, list[tuple[int, str, str]]] = {}
    own: list[tuple[int, str, str]] = []
    for line in listing.splitlines():
        if match := _FUNCTION.search(line):
            own = functions.setdefault(match[1], [])
        elif match := _INSTRUCTION.search(line):
            own.append((int(match[1], 16), match[2].split(".")[0], match[3]))
    return functions


def loops_of(instructions: list[tuple[int, str, str]]) -> list[Loop]:
    """Return the loops of a function, the largest first; the idle branch to itself at its end is none."""
    spans = set()
    for address, name, operands in instructions:
        target = _TARGET.search(operands) if name == "BRA" else None
        if target and int(target[1], 16) < address:
            spans.add((int(target[1], 16), address))
    loops = []
    for begin, end in spans:
        counts = Counter(_KIND_OF.get(name, "other") for at, name, _ in instructions if begin <= at <= end)
        inside = any(begin <= other[0] and other[1] <= end and other != (begin, end) for other in spans)
        loops.append(Loop(begin, end, counts, not inside))
    return sorted(loops, key=lambda loop: -loop.total)


def listing_of(cuobjdump: Path, cubin: Path) -> str:
    """Return the machine code of a file as text."""
    return subprocess.run([str(cuobjdump), "-sass", str(cubin)], capture_output=True, text=True, check=True).stdout
