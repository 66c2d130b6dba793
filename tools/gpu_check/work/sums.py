"""Time that each kernel adds to a step, gaps and overlaps included: a timeline by PyTorch's profiler (CUPTI).

``ncu`` runs each kernel alone, so it cannot show what lies between kernels. A kernel adds the time from when all
earlier ones have ended, or it began if that is later, to its own end, and what passed in between while nothing ran;
these add up to the step. The traces lie next to the other results, to open in Perfetto: SHAPE-STEP.trace.json.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lmdeploy.messages import TurbomindEngineConfig
from tools.bench.inprocess import in_process
from tools.bench.report import table
from tools.bench.workload import EVERY_TOKEN, GREEDY
from tools.gpu_check.work.context import Context, random_prompts

_LAYERS = 8
_PROMPT = "prompt"
_STEPS = 24  # that are read, of those in the middle
_MAX_ROWS = 24
_ON_THE_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def main(context: Context, name: str, step: str) -> None:
    """Note a table of decoding steps of ``step`` sequences, or of a ``prompt``."""
    batch, length, output = (1, 8192, 1) if step == _PROMPT else (int(step), 128, 48)
    if context.is_dry_run:
        batch, length, output = min(batch, 2), 16, min(output, 4)
    context.native()
    config = TurbomindEngineConfig(
        **EVERY_TOKEN, device="cuda", dtype="bfloat16", max_batch_size=batch, session_len=length + output + 64,
        cache_max_entry_count=batch * ((length + output) // 64 + 2),
    )  # fmt: skip
    import torch

    requests = random_prompts(random.Random(batch), [(length, output)] * batch)
    with in_process(str(context.model(name, _LAYERS)), config) as engine:
        engine.generate(requests, batch, GREEDY)  # captures graphs
        activity = torch.profiler.ProfilerActivity
        with torch.profiler.profile(activities=[activity.CPU if context.is_dry_run else activity.CUDA]) as profile:
            engine.generate(requests, batch, GREEDY)
    if context.is_dry_run:  # PyTorch's profiler does not see the emulation
        return
    trace = context.folder / f"{name}-{step}.trace.json"
    profile.export_chrome_trace(str(trace))
    kernels = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") in _ON_THE_GPU]
    found = step_table(kernels, 0 if step == _PROMPT else _STEPS)
    context.record(f"sums of {name} of {_LAYERS} layers, {step}", found)


def step_table(events: Iterable[Mapping[str, Any]], steps: int = _STEPS) -> str:
    """Return the time that each kernel adds to a step, in microseconds, the most first.

    ``events``: of a Chrome trace: ``name``, ``ts`` and ``dur`` in microseconds. ``steps``: how many, of those in the
    middle, are read; 0: all events are one step.
    """
    ordered = sorted(events, key=lambda event: float(event["ts"]))
    chosen = _middle_steps(ordered, steps) if steps else ordered
    steps = steps or 1
    if not chosen:
        return "no kernel was seen"
    added: dict[str, list[float]] = {}
    lasted: dict[str, float] = {}
    end = float(chosen[0]["ts"])
    idle = 0.0
    for event in chosen:
        begin, duration = float(event["ts"]), float(event["dur"])
        idle += max(begin - end, 0.0)
        added.setdefault(str(event["name"]), []).append(max(begin + duration - end, 0.0))
        lasted[str(event["name"])] = lasted.get(str(event["name"]), 0.0) + duration
        end = max(end, begin + duration)
    whole = end - float(chosen[0]["ts"])
    rows = [
        [_short(name), f"{len(times) / steps:.1f}", f"{sum(times) / steps:.1f}", f"{lasted[name] / len(times):.2f}"]
        for name, times in sorted(added.items(), key=lambda item: -sum(item[1]))
    ]
    head = [["(a whole step)", "", f"{whole / steps:.1f}", ""], ["(nothing runs)", "", f"{idle / steps:.1f}", ""]]
    return table(["kernel", "launches a step", "adds us a step", "us each"], [*head, *rows[:_MAX_ROWS]])


def _middle_steps(ordered: Sequence[Mapping[str, Any]], steps: int) -> Sequence[Mapping[str, Any]]:
    """Return the events of this many steps in the middle.

    A step is from a launch to the next of a kernel that is launched once a step. Several are: sampling, embedding. So
    it is the number of launches that most kernels have in common.
    """
    indices: dict[str, list[int]] = {}
    for index, event in enumerate(ordered):
        indices.setdefault(str(event["name"]), []).append(index)
    counts = Counter(len(found) for found in indices.values() if len(found) > steps + 2)
    if not counts:
        return ordered
    common = max(counts, key=lambda count: (counts[count], -count))
    boundaries = max((found for found in indices.values() if len(found) == common), key=lambda found: found[0])
    first = (len(boundaries) - steps) // 2
    return ordered[boundaries[first] : boundaries[first + steps]]


def _short(name: str) -> str:
    return name.replace("turbomind::cuda::", "").replace("(anonymous namespace)::", "").removeprefix("void ")[:90]
