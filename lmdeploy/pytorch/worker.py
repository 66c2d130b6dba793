"""Worker process of the PyTorch engine, one a rank: ``python -m lmdeploy.pytorch.worker``.

The engine starts it with two open files: the memory in which steps travel (backend_cpp/model/worker/step_channel.h),
and one that ends when the engine is gone, whatever it died of; the worker then ends as well.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmdeploy import _turbomind

CHANNEL_FILE, LIFELINE_FILE = 3, 4  # as in backend_cpp/model/worker/worker_process.h
PROFILER_DIRECTORY = "LMDEPLOY_TORCH_PROFILER_DIR"
_PROFILED_STEPS = 40
_IDLE_SECONDS = 1.0  # without an order, after which a recording ends
_TIMEOUT = 3600.0  # seconds between two looks at nothing


def main(arguments: list[str] | None = None) -> int:
    """Serve steps until the engine goes."""
    args = _parser().parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's to act on
    threading.Thread(target=_end_with_engine, name="lifeline", daemon=True).start()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # the kernels' threads need the cores
    channel = _turbomind.WorkerChannel(CHANNEL_FILE, args.rank)
    finisher = _Finisher(channel)
    runner: Any = None
    profiler = StepProfiler(args.rank)
    while True:
        given = channel.wait(profiler.timeout)
        if given is None:
            profiler.end()
            continue
        number, order = given
        is_step = order.kind == _turbomind.OrderKind.STEP
        text, deliver = "", None
        try:
            if order.kind == _turbomind.OrderKind.LOAD:
                runner = _load(args, channel)
                profiler.listen()
                text = json.dumps(runner.facts())
            elif order.kind == _turbomind.OrderKind.ALLOCATE:
                runner.allocate(order.block_count, order.block_len, order.host_block_count, order.page_bytes)
                runner.prepare(order.sequences, order.sequence_blocks)
                profiler.listen()
            elif is_step:
                profiler.begin_step()
                deliver = runner.step(order)
                profiler.end_step()
            elif order.kind == _turbomind.OrderKind.MOVE_BLOCKS:
                runner.move_blocks(order.moves, order.area)
            elif order.kind == _turbomind.OrderKind.SET_ADAPTER:
                runner.set_adapter(order.slot, order.directory)
            else:
                runner.drop_adapter(order.slot)
        except Exception as error:
            finisher.finish(number, None, _reason(error, is_step))
        else:
            finisher.finish(number, deliver, text=text)


class _Finisher:
    """Says which orders are done, in their sequence: at once, or when the device is done with them.

    While a step's device works, its thread waits, so that the next step can be launched meanwhile.
    """

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._waiting: queue.SimpleQueue[tuple[int, Callable[[], None] | None, str, str]] | None = None

    def finish(self, number: int, deliver: Callable[[], None] | None, failure: str = "", text: str = "") -> None:
        if deliver is not None and self._waiting is None:
            self._waiting = queue.SimpleQueue()
            threading.Thread(target=self._run, args=(self._waiting,), name="finisher", daemon=True).start()
        if self._waiting is None:
            self._finish(number, deliver, failure, text)
        else:
            self._waiting.put((number, deliver, failure, text))

    def _run(self, waiting: queue.SimpleQueue[tuple[int, Callable[[], None] | None, str, str]]) -> None:
        while True:
            self._finish(*waiting.get())

    def _finish(self, number: int, deliver: Callable[[], None] | None, failure: str, text: str) -> None:
        try:
            if deliver is not None:
                deliver()
        except Exception as error:
            failure = _reason(error, True)
        self._channel.finish(number, bool(failure), failure or text)


class StepProfiler:
    """Records steps of this rank with PyTorch's profiler when the process receives SIGUSR1.

    With ``LMDEPLOY_TORCH_PROFILER_DIR``, a Chrome trace of the next 40 steps, or of those until there is nothing to do,
    is written into that directory: the GPU's kernels and the calls of CUDA on a GPU, else operators on the CPU. What
    it does is said on stderr and in ``rankN.log`` there. Where the profiler fails, steps go on without it.
    """

    def __init__(self, rank: int) -> None:
        directory = os.environ.get(PROFILER_DIRECTORY)
        self._directory = Path(directory) if directory else None
        self._rank = rank
        self._names = (f"rank{rank}-{number}.trace.json.gz" for number in itertools.count())
        self._is_requested = False
        self._steps = 0
        self._begin = 0.0
        self._profile: Any = None
        if self._directory is not None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self.listen()

    def listen(self) -> None:
        """Have SIGUSR1 arrive here; again after libraries were loaded, which may have taken or blocked it."""
        if self._directory is not None:
            signal.signal(signal.SIGUSR1, self._request)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})

    @property
    def timeout(self) -> float:
        """How long to wait for an order before ``end`` is to be called."""
        return _IDLE_SECONDS if self._profile is not None else _TIMEOUT

    def begin_step(self) -> None:
        """Begin to record where that was asked for."""
        if not self._is_requested or self._profile is not None:
            return
        self._is_requested, self._steps = False, 0
        self._begin = time.monotonic()
        try:
            from torch import cuda, profiler

            activity = profiler.ProfilerActivity
            profile = profiler.profile(activities=[activity.CUDA if cuda.is_available() else activity.CPU])
            profile.start()
        except Exception as error:
            self._say(f"nothing is recorded: {_reason(error, True)}")
        else:
            self._profile = profile
            self._say(f"recording has begun, in {time.monotonic() - self._begin:.1f} s")

    def end_step(self) -> None:
        """Write the trace after the last step that is recorded."""
        if self._profile is not None:
            self._steps += 1
            if self._steps == _PROFILED_STEPS:
                self.end()

    def end(self) -> None:
        """Write what is recorded, if anything is."""
        if self._profile is None or self._directory is None:
            return
        profile, self._profile = self._profile, None
        begin = time.monotonic()
        path = self._directory / next(self._names)
        unfinished = path.with_name(f".{path.name}")  # the name decides that it is compressed
        try:
            profile.stop()
            stopped = time.monotonic()
            profile.export_chrome_trace(str(unfinished))
            unfinished.rename(path)
        except Exception as error:
            self._say(f"{self._steps} steps were recorded, but not written: {_reason(error, True)}")
        else:
            self._say(
                f"{path.name} has {self._steps} steps of {begin - self._begin:.1f} s; collected in "
                f"{stopped - begin:.1f} s, written in {time.monotonic() - stopped:.1f} s"
            )

    def _request(self, *_: object) -> None:
        self._is_requested = True
        self._say("the next steps are recorded")

    def _say(self, text: str) -> None:
        assert self._directory is not None
        line = f"pytorch: profiler of rank {self._rank}: {text}\n"
        os.write(2, line.encode())  # by the signal's handler too, which must not take the lock of sys.stderr
        with contextlib.suppress(OSError):
            log = os.open(self._directory / f"rank{self._rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(log, line.encode())
            os.close(log)


def _reason(error: Exception, is_step: bool) -> str:
    """Return the engine's text for a failed order, and print its traceback."""
    text = " ".join(str(error).split())
    is_users = isinstance(error, ValueError | OSError)  # what the user can do something about
    if is_step or not is_users:
        traceback.print_exception(error)
    return text if is_users and text else f"{type(error).__name__}: {text}"


def _load(args: argparse.Namespace, channel: Any) -> Any:
    from lmdeploy.pytorch.cpu_kernels import kernels
    from lmdeploy.pytorch.replacing.functions import make_invariant
    from lmdeploy.pytorch.step_runner import StepRunner, WorkerArguments

    make_invariant(kernels(args.threads))
    given = WorkerArguments(
        checkpoint=args.checkpoint, dtype=args.dtype, device=args.device, rank=args.rank, ranks=args.ranks,
        rendezvous=args.rendezvous, threads=args.threads, quant_policy=args.quant_policy,
        custom_module_map=args.custom_module_map, eager_mode=args.eager_mode == 1,
    )  # fmt: skip
    return StepRunner(given, channel)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lmdeploy.pytorch.worker", description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("rank", type=int)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rendezvous", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quant-policy", type=int, default=0)
    parser.add_argument("--custom-module-map", default="")
    parser.add_argument("--eager-mode", type=int, default=0)
    return parser


def _end_with_engine() -> None:
    os.read(LIFELINE_FILE, 1)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
