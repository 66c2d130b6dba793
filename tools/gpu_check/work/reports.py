"""Reports of a decode step and of a prompt, to open elsewhere: kernels' counters by ``ncu``, a timeline by ``nsys``.

The files lie next to the other results, SHAPE-STEP.ncu-rep and SHAPE-STEP.nsys-rep; ``ncu --import FILE --page raw``
and ``nsys stats FILE`` print them as tables. The profiler starts this module again with the name of the step. The model
has two layers: all kernels of a step, in seconds though ``ncu`` runs each some 40 times.
"""

from __future__ import annotations

import importlib
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from lmdeploy.messages import GenerationConfig, TurbomindEngineConfig
from tools.bench.workload import EVERY_TOKEN
from tools.gpu_check.work.context import Context, LeftOut

_LAYERS = 2
_STEPS = {"decode": 2, "prompt": 1}  # responses of this many tokens are profiled after the first one
_WAYS = {
    "ncu": (
        *("ncu", "--profile-from-start", "off", "--target-processes", "all", "--clock-control", "none"),
        *("--force-overwrite", "--set", "full", "--launch-count", "60", "--export"),
    ),
    "nsys": (
        *("nsys", "profile", "--capture-range", "cudaProfilerApi", "--force-overwrite", "true"),
        *("--trace", "cuda,nvtx", "--cuda-graph-trace", "node", "--output"),
    ),
}


def main(context: Context, shape: str, step: str = "") -> None:
    """Write the reports of a shape's steps; or, inside of the profiler, run one step.

    Raises
    ------
    LeftOut
        There is no profiler.
    RuntimeError
        None of those that are there made any: counters may be locked.
    """
    if step:
        _run(context, step, shape)
        return
    programs = [program for program in _WAYS if shutil.which(program)]
    if not programs:
        raise LeftOut("there is neither ncu nor nsys")
    written, problems = [], []
    for name in _STEPS:
        for program in programs:
            stem = context.folder / f"{shape}-{name}"
            command = [*_WAYS[program], str(stem), sys.executable, "-m", "tools.gpu_check.work", "reports", shape, name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                written.append(f"{stem.name}.{program}-rep")
            else:
                problems.append(f"{program}: {(done.stdout + done.stderr)[-3000:]}")
    print("\n".join(problems), flush=True)
    if not written:
        raise RuntimeError(problems[-1])
    context.note(f"reports of {shape}", ", ".join(written))


def _run(context: Context, step: str, shape: str) -> None:
    """Run a step between the calls that begin and end profiling."""
    context.native()
    length, batch = (24, 2) if context.is_dry_run else (2048, 32 if step == "decode" else 1)
    response = 16 if context.is_dry_run else 32
    config = TurbomindEngineConfig(
        **EVERY_TOKEN, device="cuda", dtype="bfloat16", max_batch_size=batch, session_len=length + 128,
        cache_max_entry_count=batch * (length // 64 + 3),
    )  # fmt: skip
    engine = importlib.import_module("lmdeploy.turbomind.engine").Engine(str(context.model(shape, _LAYERS)), config)
    begin, end = _profiler(context)
    try:
        _answer(engine, 1, length, 8)  # memory, plans and graphs are taken
        if step == "prompt":
            begin()
            _answer(engine, 1, length, 1)
            end()
        else:
            _answer(engine, batch, length, response)
            _answer(engine, batch, length, response, {12: begin, 12 + _STEPS[step]: end})
    finally:
        engine.close()


def _answer(
    engine: Any, batch: int, length: int, response: int, at: Mapping[int, Callable[[], object]] | None = None
) -> None:
    """Answer this many prompts; ``at`` says what to do when the first one has this many tokens."""
    tokens, config = random.Random(0), GenerationConfig(max_new_tokens=response, ignore_eos=True)
    left, done, count = [batch], threading.Event(), [0]

    def note(number: int, output: Any) -> None:
        if number == 0 and output.token_ids:
            count[0] += 1
            if at and count[0] in at:
                at[count[0]]()
        if output.is_final:
            left[0] -= 1
            if left[0] == 0:
                done.set()

    for number in range(batch):
        engine.submit(tokens.choices(range(256), k=length), config, lambda output, number=number: note(number, output))
    if not done.wait(120):
        raise RuntimeError("no response")


def _profiler(context: Context) -> tuple[Callable[[], object], Callable[[], object]]:
    if context.is_dry_run:
        return lambda: print("profiling begins"), lambda: print("profiling ends")
    import torch

    runtime = torch.cuda.cudart()
    return runtime.cudaProfilerStart, runtime.cudaProfilerStop
