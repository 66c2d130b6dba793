"""Drive a served model for a stated time with mixed traffic, and look whether anything grows, hangs or is left.

Callers stream, ask for whole responses, send long prompts, leave, hold conversations, want JSON, and send the hostile
requests of tests/abuse/corpus.json. With --restart-every tritonserver is killed again and again. The exit status is 1
where a request found no end, cache blocks or requests were left, or memory grew beyond --most-growth.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lmdeploy.messages import TurbomindEngineConfig
from tools.bench import arguments as flags
from tools.bench.report import machine
from tools.bench.server import running_server
from tools.soaking.callers import CORPUS, Caller, model_of, read_corpus
from tools.soaking.observe import Observer, Sample, descendants, name_of
from tools.soaking.traffic import Traffic
from tools.soaking.verdict import Verdict

IDLE_SECONDS = 60.0  # until when nothing may be held after the last request


async def soak(traffic: Traffic, observer: Observer, callers: int, seconds: float, every: float) -> list[Sample]:
    """Return the samples of a run."""
    samples = [await asyncio.to_thread(observer.look)]
    driving = asyncio.create_task(traffic.run(callers, seconds))
    while not driving.done():
        await asyncio.wait({driving}, timeout=every)
        samples.append(await asyncio.to_thread(observer.look))
    await driving
    return samples


async def restart(every: float, launcher: int) -> None:
    """Kill tritonserver again and again, until cancelled."""
    while True:
        await asyncio.sleep(every)
        for pid in descendants(launcher):
            with contextlib.suppress(OSError):
                if name_of(Path("/proc", str(pid))) == "tritonserver":
                    os.kill(pid, signal.SIGKILL)


def when_idle(observer: Observer) -> Sample:
    """Return the first look at which nothing is held, or the last one."""
    end = time.monotonic() + IDLE_SECONDS
    while True:
        sample = observer.look()
        held = [sample.measurements.get(name, 1.0) for name in ("blocks", "running", "waiting")]
        if not any(held) or time.monotonic() > end:
            return sample
        time.sleep(0.2)


async def run(
    traffic: Traffic, observer: Observer, callers: int, seconds: float, restart_every: float, launcher: int | None
) -> list[Sample]:
    """Drive, with restarts if they are asked for."""
    killing = asyncio.create_task(restart(restart_every, launcher)) if restart_every and launcher else None
    try:
        return await soak(traffic, observer, callers, seconds, max(0.5, seconds / 600))
    finally:
        if killing is not None:
            killing.cancel()


def main() -> None:
    """Drive, print and judge."""
    parser = flags.parser(str(__doc__))
    parser.add_argument("--url", help="of a running server, whose processes are not looked at; default: one is started")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--callers", type=flags.positive, default=16, help="at a time")
    parser.add_argument("--longest", type=flags.positive, default=400, help="tokens of a prompt; responses: a quarter")
    parser.add_argument(
        "--restart-every", type=float, default=0.0, metavar="SECONDS", help="kill tritonserver; 0: never"
    )
    parser.add_argument("--most-growth", type=float, default=64.0, metavar="MIB", help="since the server had settled")
    parser.add_argument("--blocks", type=flags.positive, default=1024, help="of the KV cache")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="hostile requests")
    given = parser.parse_args()
    config = TurbomindEngineConfig(cache_max_entry_count=given.blocks)
    with nullcontext(given.url) if given.url else running_server(given.model_path, config) as url:
        below = [] if given.url else descendants(os.getpid())
        launchers = [pid for pid in below if name_of(Path("/proc", str(pid))) == "launcher and gateway"]
        launcher = launchers[0] if launchers else None
        observer = Observer(launcher, url)
        caller = Caller(url, asyncio.run(model_of(url)))
        traffic = Traffic(caller, read_corpus(given.corpus), given.seed, given.longest)
        samples = asyncio.run(run(traffic, observer, given.callers, given.seconds, given.restart_every, launcher))
        last = when_idle(observer)
    verdict = Verdict.of(caller.outcomes, samples, last)
    print(verdict.text())
    if given.json:
        reported = {**asdict(verdict), "samples": [asdict(sample) for sample in samples], "machine": machine()}
        given.json.write_text(json.dumps(reported, indent=1), encoding="utf-8")
    if verdict.unanswered or any(verdict.left.values()) or verdict.total_growth > given.most_growth:
        raise RuntimeError("something hangs, is left, or grows")


if __name__ == "__main__":
    flags.run(main)
