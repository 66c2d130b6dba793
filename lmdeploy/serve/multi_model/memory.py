"""Division of a device's memory among several models."""

from __future__ import annotations

import contextlib
import csv
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmdeploy.units import size_text

DEFAULT_SHARE = 0.8
_CPU_CACHE = 4 << 30  # bytes of a cache that nobody said the size of: a CPU's memory is everybody's
_SMI_SECONDS = 10.0


@dataclass(frozen=True)
class Need:
    """Memory that a model takes of a device."""

    name: str  # the model's
    device: str  # ``cpu`` or ``cuda``
    weights: int  # bytes, and those of the states of sequences, whose number is fixed
    block: int  # bytes of a block of the cache
    max_blocks: int  # more blocks are of no use to it
    # ``cache_max_entry_count``: below 1 a share of what all weights leave, from 1 on a number of blocks; None: not said
    cache: float | None = None

    @property
    def fixed_blocks(self) -> int | None:
        """Blocks that it was asked to have; None: a share."""
        return int(self.cache) if self.cache is not None and self.cache >= 1 else None


def divide(needs: Sequence[Need], free: int, budget: str = "") -> dict[str, int]:
    """Return how many blocks the cache of each model gets; raise `ValueError` if they do not fit; the text names sizes.

    ``needs``: of models on one device. ``free``: bytes of that device. ``budget``: the option that says how many, for
    errors; empty: they are all that are free.
    """
    given = sum(need.cache or 0 for need in needs if need.fixed_blocks is None)
    if given > 1:
        shares = ", ".join(f"{need.name} {need.cache:g}" for need in needs if need.cache and need.cache < 1)
        raise ValueError(
            f"the shares of the cache memory (cache_max_entry_count) are {shares}: together {given:g}, and may be 1"
        )
    unsaid = sum(need.cache is None for need in needs)
    fixed = {need.name: count for need in needs if (count := need.fixed_blocks) is not None}
    left = free - sum(need.weights + fixed.get(need.name, 0) * need.block for need in needs)
    blocks: dict[str, int] = {}
    for need in needs:
        if need.name in fixed:
            blocks[need.name] = fixed[need.name]
            continue
        share = need.cache if need.cache is not None else DEFAULT_SHARE * (1 - given) / unsaid
        room = int(share * max(0, left))
        if need.cache is None and need.device == "cpu":
            room = min(room, _CPU_CACHE)
        blocks[need.name] = min(room // need.block, need.max_blocks)
    if left < 0 or not all(blocks.values()):
        raise ValueError(_shortage(needs, fixed, size_text(free), budget))
    return blocks


def _shortage(needs: Sequence[Need], fixed: dict[str, int], free: str, budget: str) -> str:
    parts = []
    for need in needs:
        cache = fixed[need.name] * need.block if need.name in fixed else need.block
        qualifier = "" if need.name in fixed else "at least "
        parts.append(
            f"{need.name} takes {size_text(need.weights)} of weights and {qualifier}{size_text(cache)} of cache"
        )
    what = "the models do not fit together" if len(needs) > 1 else f"{needs[0].name} does not fit"
    return (
        f"{what} into the {free} {f'of {budget}' if budget else f'that are free on {needs[0].device}'}: "
        f"{', '.join(parts)}; {f'raise {budget}, ' if budget else ''}lower cache_max_entry_count, set weight_bits, or "
        "serve fewer models"
    )


def free_memory(device: str) -> int | None:
    """Return the bytes that are free on a device, of several the least; None if nothing reports it."""
    return _free_on_cpu() if device == "cpu" else _free_on_gpus()


def _free_on_cpu() -> int | None:
    free = None
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) << 10
    with contextlib.suppress(OSError, ValueError):  # no limit is the word "max"
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        free = max(0, limit - used) if free is None else min(free, max(0, limit - used))
    return free


def _free_on_gpus() -> int | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SMI_SECONDS).stdout
        return min(int(row[0]) << 20 for row in csv.reader(output.splitlines()) if row)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
