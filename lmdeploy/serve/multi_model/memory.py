"""Division of a device's memory among several models."""

from __future__ import annotations

import contextlib
import csv
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lmdeploy.serve.multi_model.prepared import PreparedModel
from lmdeploy.units import size_text

DEFAULT_SHARE = 0.8
_CPU_CACHE = 4 << 30  # bytes of a cache that nobody said the size of: a CPU's memory is everybody's
_SMI_SECONDS = 10.0


def divide(models: Sequence[PreparedModel], free: int, budget: str = "") -> dict[str, int]:
    """Return how many blocks the cache of each model gets; raise `ValueError` if they do not fit; the text names sizes.

    ``models``: on one device. ``free``: bytes of that device. ``budget``: the option that says how many, for
    errors; empty: they are all that are free.
    """
    given = sum(model.cache or 0 for model in models if model.fixed_blocks is None)
    if given > 1:
        shares = ", ".join(f"{model.name} {model.cache:g}" for model in models if model.cache and model.cache < 1)
        raise ValueError(
            f"the shares of the cache memory (cache_max_entry_count) are {shares}: together {given:g}, and may be 1"
        )
    unsaid = sum(model.cache is None for model in models)
    fixed = {model.name: count for model in models if (count := model.fixed_blocks) is not None}
    left = free - sum(model.weights + fixed.get(model.name, 0) * model.block for model in models)
    blocks: dict[str, int] = {}
    for model in models:
        if model.name in fixed:
            blocks[model.name] = fixed[model.name]
            continue
        share = model.cache if model.cache is not None else DEFAULT_SHARE * (1 - given) / unsaid
        room = int(share * max(0, left))
        if model.cache is None and model.device == "cpu":
            room = min(room, _CPU_CACHE)
        blocks[model.name] = min(room // model.block, model.max_blocks)
    if left < 0 or not all(blocks.values()):
        raise ValueError(_shortage(models, fixed, size_text(free), budget))
    return blocks


def _shortage(models: Sequence[PreparedModel], fixed: dict[str, int], free: str, budget: str) -> str:
    parts = []
    for model in models:
        cache = fixed[model.name] * model.block if model.name in fixed else model.block
        qualifier = "" if model.name in fixed else "at least "
        parts.append(
            f"{model.name} takes {size_text(model.weights)} of weights and {qualifier}{size_text(cache)} of cache"
        )
    what = "the models do not fit together" if len(models) > 1 else f"{models[0].name} does not fit"
    return (
        f"{what} into the {free} {f'of {budget}' if budget else f'that are free on {models[0].device}'}: "
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
