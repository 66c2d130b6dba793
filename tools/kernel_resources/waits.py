"""What kernels do before they wait for the launch before them (backend_cpp/kernels/cuda/device.h), in machine code."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_FUNCTION = re.compile(r"Function : (\S+)")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)[^;]*;")

WAIT = "ACQBULK"  # griddepcontrol.wait; launch_dependents is PREEXIT
_READS = ("LDG", "LD", "LDGSTS", "UBLKCP", "UTMALDG")
_WRITES = ("STG", "ST", "ATOMG", "ATOM", "RED", "REDG", "UTMASTG", "UTMAREDG")


@dataclass(frozen=True)
class Start:
    """The beginning of a kernel.

    Attributes
    ----------
    waits
        How often the kernel waits: more than once where ways through it differ.
    reads, writes
        Instructions that touch the device's memory and are before the first wait.
    between
        Those reads that are after the first wait and before the last.
    """

    waits: int
    reads: Counter[str]
    writes: Counter[str]
    between: Counter[str]


def listing_of(cuobjdump: Path, cubin: Path) -> str:
    """Return the machine code of a file as text."""
    return subprocess.run([str(cuobjdump), "-sass", str(cubin)], capture_output=True, text=True, check=True).stdout


def instructions_of(listing: str) -> dict[str, list[str]]:
    """Return the instructions of each function of a listing, without modifiers and operands."""
    functions: dict[str, list[str]] = {}
    own: list[str] = []
    for line in listing.splitlines():
        if match := _FUNCTION.search(line):
            own = functions.setdefault(match[1], [])
        elif match := _INSTRUCTION.search(line):
            own.append(match[1].split(".")[0])
    return functions


def start_of(names: list[str]) -> Start:
    """Return how a kernel begins, from its instructions in the order of addresses."""
    places = [i for i, name in enumerate(names) if name == WAIT] or [len(names)]
    before, between = names[: places[0]], names[places[0] : places[-1]]
    return Start(
        names.count(WAIT),
        Counter(name for name in before if name in _READS),
        Counter(name for name in before if name in _WRITES),
        Counter(name for name in between if name in _READS),
    )
