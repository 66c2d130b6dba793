"""Peak rates of devices, by their makers' data sheets."""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """One device, or several that act as one."""

    name: str
    memory: float  # Bytes
    bandwidth: float  # bytes a second from that memory
    # A second in matrix products of 16 bits without sparsity; a multiplication and an addition are two
    operations: float

    def times(self, count: int) -> Device:
        """Return this many of them as one, were it free to exchange what they compute."""
        name = self.name if count == 1 else f"{count} x {self.name}"
        return Device(name, self.memory * count, self.bandwidth * count, self.operations * count)


# Name: memory in GB, bandwidth in GB/s, TFLOP/s. SXM modules where nothing else is said.
_SHEETS = {
    "A10": (24, 600, 125),
    "A30": (24, 933, 165),
    "A100-40G": (40, 1555, 312),
    "A100": (80, 2039, 312),
    "L4": (24, 300, 121),
    "L40S": (48, 864, 362),
    "RTX3090": (24, 936, 71),
    "RTX4090": (24, 1008, 165),
    "H100-PCIe": (80, 2000, 756),
    "H100": (80, 3350, 989),
    "H200": (141, 4800, 989),
    "B200": (180, 7700, 2250),
}
DEVICES = {
    name: Device(name, memory * 1e9, bandwidth * 1e9, teraflops * 1e12)
    for name, (memory, bandwidth, teraflops) in _SHEETS.items()
}


def device_of(name: str) -> Device:
    """Return a device by its name, in any case.

    Raises `ValueError` if there is none of that name; the nearest one is named.
    """
    known = {known.lower(): device for known, device in DEVICES.items()}
    if device := known.get(name.lower()):
        return device
    nearest = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    hint = f"; did you mean {known[nearest[0]].name}?" if nearest else ""
    raise ValueError(f"unknown device {name}: known are {', '.join(DEVICES)}{hint}")
