"""What each kernel adds to a decoding step, gaps and overlaps included: a timeline by PyTorch's profiler (CUPTI).

``ncu`` runs each kernel alone, so it cannot show what lies between kernels. A kernel adds the time from when all
earlier ones have ended, or it began if that is later, to its own end, and what passed in between while nothing ran;
these add up to the step. The traces lie next to the other results, to open in Perfetto: ENGINE-BATCH.trace.json.gz.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lmdeploy.messages import PytorchEngineConfig, TurbomindEngineConfig
from lmdeploy.pytorch.worker import PROFILER_DIRECTORY
from tools.bench.inprocess import InProcess, in_process
from tools.bench.report import table
from tools.bench.workload import EVERY_TOKEN, GREEDY, TokenRequest
from tools.gpu_check.work.context import RANDOM_LLAMA, Context

_SHAPE, _LAYERS = "llama-8b", 8
_BATCHES, _CONTEXT, _OUTPUT = (1, 64), 128, 48
_STEPS = 24  # that are read, of those in the middle
_MOST_ROWS = 24
_TRACE_SECONDS = 60.0  # for a worker to write its trace, after the last step


def main(context: Context, engine: str, shape: str = _SHAPE) -> None:
    """Note a table for each batch size of ``turbomind`` or ``pytorch``."""
    batches = (1, 2) if context.is_dry_run else _BATCHES
    length, output = (16, 4) if context.is_dry_run else (_CONTEXT, _OUTPUT)
    blocks = max(batches) * ((length + output) // 64 + 2)
    config: Any
    if engine == "pytorch":
        config = PytorchEngineConfig(
            **EVERY_TOKEN, device_type=context.torch_device, dtype="bfloat16", max_batch_size=max(batches),
            session_len=length + output + 64, block_size=64, num_gpu_blocks=blocks, max_prefill_token_num=8192,
            custom_module_map=RANDOM_LLAMA,
        )  # fmt: skip
    else:
        context.native()
        config = TurbomindEngineConfig(
            **EVERY_TOKEN, device="cuda", dtype="bfloat16", max_batch_size=max(batches),
            session_len=length + output + 64, cache_max_entry_count=blocks,
        )  # fmt: skip
    directory = context.cache / f"{engine}-traces"
    shutil.rmtree(directory, ignore_errors=True)  # traces of an earlier call
    os.environ[PROFILER_DIRECTORY] = str(directory)
    record = _of_worker if engine == "pytorch" else _of_this_process
    with in_process(str(context.model(shape, _LAYERS)), config) as running:
        for batch, named in zip(batches, _BATCHES, strict=True):
            generate = partial(_generate, running, batch, length, output)
            generate()  # compiles and captures
            if context.is_dry_run and engine != "pytorch":  # PyTorch's profiler does not see the emulation
                generate()
                continue
            trace = context.folder / f"{engine}-{shape}-{named}.trace.json.gz"
            shutil.move(record(generate, directory), trace)
            events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
            kernels = [event for event in events if event.get("cat") in _ON_THE_GPU]
            context.note(f"timeline of {engine}, {shape} of {_LAYERS} layers, batch {named}", step_table(kernels))


_ON_THE_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


def _of_this_process(generate: Callable[[], None], directory: Path) -> Path:
    """Return the trace of what this process has the GPU do meanwhile."""
    import torch

    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "steps.trace.json.gz"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        generate()
    profile.export_chrome_trace(str(path))
    return path


def _of_worker(generate: Callable[[], None], directory: Path) -> Path:
    """Return the trace of the engine's worker, by ``LMDEPLOY_TORCH_PROFILER_DIR``."""
    (worker,) = (process for process in _children() if b"lmdeploy.pytorch.worker" in process[1])
    os.kill(worker[0], signal.SIGUSR1)
    generate()
    return trace_of_worker(directory)


def _children() -> Iterator[tuple[int, bytes]]:
    """Yield the processes that this one has started, with their commands."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = (process / "stat").read_bytes().rpartition(b")")[2].split()[1]
            if int(parent) == os.getpid():
                yield int(process.name), (process / "cmdline").read_bytes()


def trace_of_worker(directory: Path, seconds: float = _TRACE_SECONDS) -> Path:
    """Return the trace that a worker writes into the directory.

    Raises
    ------
    RuntimeError
        There is none in that time, with what the worker has said.
    """
    deadline = time.monotonic() + seconds
    while not (found := list(directory.glob("rank0-*.gz"))):
        if time.monotonic() > deadline:
            log = directory / "rank0.log"
            said = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
            last = said[-1] if said else "nothing, so SIGUSR1 did not arrive"
            raise RuntimeError(f"the worker wrote no trace within {seconds:.0f} s; it said: {last}")
        time.sleep(0.1)
    return found[0]


def _generate(engine: InProcess, batch: int, length: int, output: int) -> None:
    tokens = random.Random(batch)
    requests = [TokenRequest(tuple(tokens.choices(range(256), k=length)), output) for _ in range(batch)]
    engine.generate(requests, batch, GREEDY)


def step_table(events: Iterable[Mapping[str, Any]], steps: int = _STEPS) -> str:
    """Return what each kernel adds to a step, in microseconds, the most first.

    Parameters
    ----------
    events
        Of a Chrome trace: ``name``, ``ts`` and ``dur`` in microseconds.
    steps
        How many, of those in the middle, are read.
    """
    ordered = sorted(events, key=lambda event: float(event["ts"]))
    chosen = _middle_steps(ordered, steps)
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
        [_short(name), f"{len(each) / steps:.1f}", f"{sum(each) / steps:.1f}", f"{lasted[name] / len(each):.2f}"]
        for name, each in sorted(added.items(), key=lambda item: -sum(item[1]))
    ]
    head = [["(a whole step)", "", f"{whole / steps:.1f}", ""], ["(nothing runs)", "", f"{idle / steps:.1f}", ""]]
    return table(["kernel", "launches a step", "adds us a step", "us each"], [*head, *rows[:_MOST_ROWS]])


def _middle_steps(ordered: Sequence[Mapping[str, Any]], steps: int) -> Sequence[Mapping[str, Any]]:
    """Return the events of this many steps in the middle.

    A step is from a launch to the next of a kernel that is launched once a step. Several are: sampling, embedding. So
    it is the number of launches that most kernels have in common.
    """
    places: dict[str, list[int]] = {}
    for place, event in enumerate(ordered):
        places.setdefault(str(event["name"]), []).append(place)
    counts = Counter(len(found) for found in places.values() if len(found) > steps + 2)
    if not counts:
        return ordered
    common = max(counts, key=lambda count: (counts[count], -count))
    marks = max((found for found in places.values() if len(found) == common), key=lambda found: found[0])
    first = (len(marks) - steps) // 2
    return ordered[marks[first] : marks[first + steps]]


def _short(name: str) -> str:
    return name.replace("turbomind::cuda::", "").replace("(anonymous namespace)::", "").removeprefix("void ")[:90]
