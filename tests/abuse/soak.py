"""Drive a served model for a stated time with mixed traffic, and look whether anything grows, hangs or is left.

Callers stream, ask for whole responses, send long prompts, leave, hold conversations, want JSON, and send the hostile
requests of corpus.json. With --restart-every tritonserver is killed again and again. The exit status is 1
where a request found no end, cache blocks or requests were left, or memory grew beyond --most-growth.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from lmdeploy.messages import TurbomindEngineConfig
from tests.abuse.callers import CORPUS, Caller, Outcome, model_of, read_corpus
from tests.abuse.observe import Observer, Sample, descendants, name_of
from tests.abuse.traffic import Traffic
from tools.bench import arguments as flags
from tools.bench.report import machine
from tools.bench.server import running_server
from tools.bench.stats import median, percentile

IDLE_SECONDS = 60.0  # until when nothing may be held after the last request
SETTLED_SECONDS = 600.0  # by then, or by half of a shorter run, caches have their size


@dataclass(frozen=True)
class Verdict:
    """A run in numbers.

    Attributes
    ----------
    seconds
        How long it was.
    ends
        How often requests of each kind ended in which way.
    unanswered
        Requests without an end; must be 0.
    growth
        MiB of each process at the end over those when it had settled.
    files_growth
        File descriptors, likewise.
    left
        Cache blocks in use, running and waiting requests after all have ended; must be 0.
    gap_p50, gap_p99
        Seconds between tokens of streams.
    """

    seconds: float
    ends: dict[str, dict[str, int]]
    unanswered: int
    growth: dict[str, float]
    files_growth: dict[str, int]
    left: dict[str, float]
    gap_p50: float
    gap_p99: float

    @staticmethod
    def of(outcomes: Sequence[Outcome], samples: Sequence[Sample], last: Sample) -> Verdict:
        """Return the verdict of a run whose server was looked at all the time, and once more when it was idle."""
        ends: dict[str, Counter[str]] = {}
        for outcome in outcomes:
            ends.setdefault(outcome.name, Counter())[outcome.end] += 1
        begin, end = _settled(samples)
        names = sorted({name for sample in end for name in sample.memory})
        gaps = [gap for outcome in outcomes if outcome.name == "stream" for gap in outcome.gaps()]
        return Verdict(
            seconds=samples[-1].seconds,
            ends={name: dict(counted) for name, counted in sorted(ends.items())},
            unanswered=sum(outcome.end == "unanswered" for outcome in outcomes),
            growth={name: round(_memory(end, name) - _memory(begin, name), 1) for name in names},
            files_growth={name: round(_files(end, name) - _files(begin, name)) for name in names},
            left={name: last.measurements.get(name, -1.0) for name in ("blocks", "running", "waiting")},
            gap_p50=percentile(gaps, 50),
            gap_p99=percentile(gaps, 99),
        )

    @property
    def total_growth(self) -> float:
        """MiB of all processes."""
        return sum(self.growth.values())

    def text(self) -> str:
        """Return it for people."""
        counts = Counter[str]()
        for ends in self.ends.values():
            counts.update(ends)
        growth = ", ".join(f"{name} {value:+.1f}" for name, value in self.growth.items())
        files = ", ".join(f"{name} {value:+d}" for name, value in self.files_growth.items())
        return "\n".join(
            (
                f"{self.seconds:.0f} s, {sum(counts.values())} requests: "
                + ", ".join(f"{count} {end}" for end, count in counts.most_common()),
                f"without an end: {self.unanswered}",
                f"memory, MiB since settled: {self.total_growth:+.1f} ({growth})",
                f"file descriptors since settled: {files}",
                "left when idle: " + ", ".join(f"{value:.0f} {name}" for name, value in self.left.items()),
                f"between tokens: median {self.gap_p50 * 1000:.1f} ms, p99 {self.gap_p99 * 1000:.1f} ms",
            )
        )


def _settled(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Return the samples around the moment when the server had settled, and those at the end."""
    whole = samples[-1].seconds
    warm_up = min(SETTLED_SECONDS, whole / 2)
    around = [sample for sample in samples if abs(sample.seconds - warm_up) <= whole / 10]
    end = [sample for sample in samples if sample.seconds >= whole * 0.9]
    return around or list(samples[:1]), end


def _memory(samples: Sequence[Sample], name: str) -> float:
    return median([sample.memory.get(name, 0.0) for sample in samples])


def _files(samples: Sequence[Sample], name: str) -> float:
    return median([float(sample.files.get(name, 0)) for sample in samples])


async def soak(traffic: Traffic, observer: Observer, callers: int, seconds: float, every: float) -> list[Sample]:
    """Return the samples of a run."""
    samples = [await asyncio.to_thread(observer.sample)]
    driving = asyncio.create_task(traffic.run(callers, seconds))
    while not driving.done():
        await asyncio.wait({driving}, timeout=every)
        samples.append(await asyncio.to_thread(observer.sample))
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
        sample = observer.sample()
        in_use = [sample.measurements.get(name, 1.0) for name in ("blocks", "running", "waiting")]
        if not any(in_use) or time.monotonic() > end:
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
