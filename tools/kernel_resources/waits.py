"""What kernels do before they wait for the launch before them (backend_cpp/kernels/cuda/device.h), in machine code."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

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


def start_of(instructions: list[tuple[int, str, str]]) -> Start:
    """Return how a kernel begins, from what ``instructions_of`` lists, in the order of addresses."""
    names = [name for _, name, _ in instructions]
    places = [i for i, name in enumerate(names) if name == WAIT] or [len(names)]
    before, between = names[: places[0]], names[places[0] : places[-1]]
    return Start(
        names.count(WAIT),
        Counter(name for name in before if name in _READS),
        Counter(name for name in before if name in _WRITES),
        Counter(name for name in between if name in _READS),
    )
