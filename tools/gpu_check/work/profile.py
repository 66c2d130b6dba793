"""Which kernel takes what of one decoding step and one prompt: a table by ``ncu``, else by ``nsys``.

The profiler starts this module again with the name of what is to be profiled. The model has two layers: all kernels of
a step, in seconds though each is run several times.
"""

from __future__ import annotations

import csv
import importlib
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable

from lmdeploy.messages import GenerationConfig, TurbomindEngineConfig
from tools.bench.report import table
from tools.bench.workload import EVERY_TOKEN
from tools.gpu_check.work.context import Context, LeftOut

_SHAPE, _LAYERS = "llama-8b", 2
_TIME = "gpu__time_duration.sum"
_METRICS = {
    _TIME: "us",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory %",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM %",
    "launch__registers_per_thread": "registers",
}
_MICROSECONDS = {"nsecond": 1e-3, "ns": 1e-3, "usecond": 1.0, "us": 1.0, "msecond": 1e3, "ms": 1e3, "s": 1e6}
STEPS = {"decode": 2, "prompt": 1}  # responses of this many tokens are profiled after the first one
NCU = ("ncu", "--profile-from-start", "off", "--target-processes", "all", "--clock-control", "none")
NSYS = ("nsys", "profile", "--capture-range", "cudaProfilerApi", "--force-overwrite", "true")


def main(context: Context, step: str = "", shape: str = _SHAPE) -> None:
    """Profile all steps; or, inside of the profiler, run one."""
    if step:
        _run(context, step, shape)
        return
    ways = [way for program, way in (("ncu", _by_ncu), ("nsys", _by_nsys)) if shutil.which(program)]
    if not ways:
        raise LeftOut("there is neither ncu nor nsys")
    for name in STEPS:
        command = command_of(name)
        for way in ways:
            try:
                way(context, name, command)
                break
            except RuntimeError as error:
                print(error, flush=True)
                if way is ways[-1]:
                    raise


def _by_ncu(context: Context, name: str, command: list[str]) -> None:
    text = output_of([*NCU, "--csv", "--print-units", "base", "--metrics", ",".join(_METRICS), *command])
    context.note(f"profile of one {name} step by ncu", ncu_table(text.splitlines()))


def _by_nsys(context: Context, name: str, command: list[str]) -> None:
    report = context.cache / f"{name}.nsys-rep"
    output_of([*NSYS, "--output", str(report), *command])
    summary = output_of(["nsys", "stats", "--report", "cuda_gpu_kern_sum", "--force-export", "true", str(report)])
    context.note(f"profile of one {name} step by nsys", summary)


def command_of(step: str, shape: str = _SHAPE) -> list[str]:
    """Return what runs a step of a shape for a profiler."""
    return [sys.executable, "-m", "tools.gpu_check.work", "profile", step, shape]


def output_of(command: list[str]) -> str:
    """Return what a command prints; raise RuntimeError with its last words where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:2])}: {(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def ncu_table(lines: Iterable[str]) -> str:
    """Return the rows of ncu's CSV, a metric each, as one table with a row a kernel, the longest first."""
    quoted = [line for line in lines if line.startswith('"')]  # what the program prints is between
    kernels: dict[str, dict[str, list[float]]] = {}
    for row in csv.DictReader(quoted):
        value = float(row["Metric Value"].replace(",", "") or "nan")
        if row["Metric Name"] == _TIME:
            value *= _MICROSECONDS[row["Metric Unit"]]
        kernels.setdefault(row["Kernel Name"], {}).setdefault(row["Metric Name"], []).append(value)
    if not kernels:
        raise RuntimeError("ncu saw no kernel: counters may be locked")
    rows = []
    for name, found in sorted(kernels.items(), key=lambda item: -sum(item[1].get(_TIME, [0]))):
        times = found.get(_TIME, [0.0])
        means = [sum(found[metric]) / len(found[metric]) if metric in found else 0.0 for metric in _METRICS]
        cells = [f"{sum(times):.1f}", *(f"{mean:.1f}" for mean in means)]
        rows.append([name.replace("turbomind::cuda::", "")[:90], str(len(times)), *cells])
    return table(["kernel", "launches", "us in all", *(f"{text} each" for text in _METRICS.values())], rows)


def _run(context: Context, step: str, shape: str) -> None:
    """Run a step between the calls that begin and end profiling."""
    context.native()
    engines = importlib.import_module("lmdeploy.turbomind.engine")
    length, batch = (24, 2) if context.is_dry_run else (2048, 32 if step == "decode" else 1)
    response = 16 if context.is_dry_run else 32
    config = TurbomindEngineConfig(
        **EVERY_TOKEN, device="cuda", dtype="bfloat16", max_batch_size=batch, session_len=length + 128,
        cache_max_entry_count=batch * (length // 64 + 3),
    )  # fmt: skip
    engine = engines.Engine(str(context.model(shape, _LAYERS)), config)
    begin, end = _profiler(context)
    try:
        _answer(engine, 1, length, 8)  # memory, plans and graphs are taken
        if step == "prompt":
            begin()
            _answer(engine, 1, length, 1)
            end()
        else:
            _answer(engine, batch, length, response)
            _answer(engine, batch, length, response, {12: begin, 12 + STEPS[step]: end})
    finally:
        engine.close()


def _answer(
    engine: object, batch: int, length: int, response: int, at: dict[int, Callable[[], object]] | None = None
) -> None:
    """Answer this many prompts; ``at`` says what to do when the first one has this many tokens."""
    import threading

    tokens = random.Random(0)
    left, done, count = [batch], threading.Event(), [0]
    config = GenerationConfig(max_new_tokens=response, ignore_eos=True)

    def note(number: int, output: object) -> None:
        if number == 0 and output.token_ids:  # type: ignore[attr-defined]
            count[0] += 1
            if at and count[0] in at:
                at[count[0]]()
        if output.is_final:  # type: ignore[attr-defined]
            left[0] -= 1
            if left[0] == 0:
                done.set()

    for number in range(batch):
        ids = tokens.choices(range(256), k=length)
        engine.submit(ids, config, lambda output, number=number: note(number, output))  # type: ignore[attr-defined]
    if not done.wait(120):
        raise RuntimeError("no response")


def _profiler(context: Context) -> tuple[Callable[[], object], Callable[[], object]]:
    if context.is_dry_run:
        return lambda: print("profiling begins"), lambda: print("profiling ends")
    import torch

    runtime = torch.cuda.cudart()
    return runtime.cudaProfilerStart, runtime.cudaProfilerStop
