"""Measure what hostile callers cost honest ones: time between tokens alongside them, and alongside harmless twins.

Honest callers stream responses without a pause. With them this many clients go through the corpus of hostile requests
(tests/abuse/corpus.json), one request each a slot of time; then the same clients send the twins: the same prompts and
lengths, without the harm. Both are done in turns, each with its own server. The aim is a ratio of 1.10 at most,
and no honest request refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lmdeploy.messages import TurbomindEngineConfig
from tools.bench import arguments as flags
from tools.bench.progress import progress_bar
from tools.bench.report import machine, milliseconds, table
from tools.bench.server import running_server
from tools.bench.stats import percentile
from tools.bench.workload import WORDS
from tools.soaking.callers import Caller, Outcome, model_of
from tools.soaking.corpus import CORPUS, Ask, read_corpus
from tools.soaking.observe import Observer

IDLE_SECONDS = 60.0
WARM_UP_SECONDS = 2.0


def honest(generator: random.Random) -> Ask:
    """Return an honest request."""
    prompt = " ".join(generator.choices(WORDS, k=32))
    body = {"prompt": prompt, "max_tokens": 64, "ignore_eos": True, "temperature": 0, "stream": True}
    return Ask("honest", "/v1/completions", body)


async def alongside(url: str, others: list[Ask], streams: int, seconds: float, slot: float, seed: int) -> list[Outcome]:
    """Return the outcomes of honest streams alongside other clients, one for each list entry in turn.

    Parameters
    ----------
    url
        Of the server.
    others
        What the clients alongside send; as many clients as streams.
    streams
        Honest callers.
    seconds
        How long; what is open then is cut off, and what an honest caller waited for its next token by then counts.
    slot
        Seconds from one request of a client to its next, or longer if that takes longer.
    seed
        Of prompts and of the order.
    """
    caller = Caller(url, await model_of(url))

    async def stream(number: int) -> None:
        generator = random.Random(f"{seed}/{number}")
        while True:
            await caller.send(honest(generator))

    async def client(number: int) -> None:
        order = list(others)
        random.Random(f"{seed}/{number}").shuffle(order)
        turn = 0
        while True:
            started = time.perf_counter()
            await caller.send(order[turn % len(order)], hold=slot)
            turn += 1
            await asyncio.sleep(max(0.0, started + slot - time.perf_counter()))

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            for number in range(streams):
                group.create_task(stream(number))
                group.create_task(client(number))
    return caller.outcomes


def wait_until_idle(url: str) -> None:
    """Return when the engine has nothing to do, a minute later at most."""
    observer = Observer(None, url)
    end = time.monotonic() + IDLE_SECONDS
    while observer.look().measurements.get("running", 1.0) and time.monotonic() < end:
        time.sleep(0.2)


def main() -> None:
    """Measure and print."""
    parser = flags.parser(str(__doc__))
    parser.add_argument("--url", help="of a running server; default: one is started")
    parser.add_argument("--streams", type=flags.positive, default=8, help="honest callers, and clients alongside them")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each turn")
    parser.add_argument("--turns", type=flags.positive, default=2, help="of each kind")
    parser.add_argument(
        "--slot",
        type=float,
        default=8.0,
        help="seconds between two requests of a client here: long enough that the twins keep up, else hostile ones, "
        "which are refused sooner, come more often (default: %(default)s)",
    )
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--only", help="the hostile requests whose name holds this text")
    flags.add_progress(parser)
    given = parser.parse_args()
    pairs = [pair for pair in read_corpus(given.corpus) if (given.only or "") in pair[0].name]
    if not pairs:
        raise ValueError(f"no request of {given.corpus} has a name that holds {given.only}")
    sides = {"harmless twins": [twin for _, twin in pairs], "hostile clients": [hostile for hostile, _ in pairs]}
    found: dict[str, list[Outcome]] = {side: [] for side in sides}
    config = TurbomindEngineConfig(cache_max_entry_count=0.2)
    cases = list(product(range(given.turns), sides.items()))
    with progress_bar(len(cases), "turn", is_shown=not given.disable_tqdm) as advance:
        for turn, (side, others) in cases:
            # Its own server: what hostile requests keep busy, they may keep busy for long after they have gone.
            with nullcontext(given.url) if given.url else running_server(given.model_path, config) as url:
                wait_until_idle(url)
                asyncio.run(
                    alongside(url, sides["harmless twins"][:1], given.streams, WARM_UP_SECONDS, given.slot, turn)
                )
                wait_until_idle(url)
                seed = given.seed + turn
                found[side] += asyncio.run(alongside(url, others, given.streams, given.seconds, given.slot, seed))
            advance()
    result = {side: Measurements.of(outcomes) for side, outcomes in found.items()}
    header = ("alongside", "honest responses", "refused or failed", "median", "p99", "max", "requests alongside")
    print(table(header, [measurements.row(side) for side, measurements in result.items()]))
    twins, hostile = result["harmless twins"], result["hostile clients"]
    print(f"p99 {hostile.p99 / twins.p99:.2f} times, median {hostile.median / twins.median:.2f} times")
    reported = {
        (outcome.name, outcome.end, outcome.detail)
        for side in found.values()
        for outcome in side
        if outcome.end in ("failed", "unanswered")
    }
    for name, ended, detail in sorted(reported):
        print(f"{name}: {ended}: {detail}")
    if given.json:
        sides_reported = {side: asdict(measurements) for side, measurements in result.items()}
        given.json.write_text(json.dumps({**sides_reported, "machine": machine()}, indent=1), encoding="utf-8")


@dataclass(frozen=True)
class Measurements:
    """What honest callers saw alongside one kind of clients; times between tokens in seconds."""

    answers: int
    not_answered: int
    median: float
    p99: float
    longest: float
    alongside: dict[str, int]

    @staticmethod
    def of(outcomes: list[Outcome]) -> Measurements:
        """Return the metrics of some turns."""
        ours = [outcome for outcome in outcomes if outcome.name == "honest"]
        gaps = [gap for outcome in ours for gap in outcome.gaps()]
        return Measurements(
            answers=sum(outcome.end == "answered" for outcome in ours),
            not_answered=sum(outcome.end not in ("answered", "cut") for outcome in ours),
            median=percentile(gaps, 50),
            p99=percentile(gaps, 99),
            longest=max(gaps, default=float("nan")),
            alongside=dict(Counter(outcome.end for outcome in outcomes if outcome.name != "honest")),
        )

    def row(self, side: str) -> list[str]:
        """Return a line of the table; the times are milliseconds."""
        times = (milliseconds(value) for value in (self.median, self.p99, self.longest))
        alongside = ", ".join(f"{count} {end}" for end, count in sorted(self.alongside.items()))
        return [side, str(self.answers), str(self.not_answered), *times, alongside]


if __name__ == "__main__":
    flags.run(main)
