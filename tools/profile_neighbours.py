"""Measure what hostile callers cost honest ones: time between tokens beside them, and beside harmless twins.

Honest callers stream answers without a pause. Beside them so many clients go through the corpus of hostile requests
(tests/abuse/corpus.json), one request each a slot of time; then the same clients send the twins: the same prompts and
lengths, without the harm. Both are done in turns, each with a server of its own. The aim is a ratio of 1.10 at most,
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lmdeploy.messages import TurbomindEngineConfig
from tools.bench import arguments as flags
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


async def beside(url: str, others: list[Ask], streams: int, seconds: float, slot: float, seed: int) -> list[Outcome]:
    """Return the outcomes of honest streams beside other clients, one for each list entry in turn.

    Parameters
    ----------
    url
        Of the server.
    others
        What the clients beside send; as many clients as streams.
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
    while observer.look().figures.get("running", 1.0) and time.monotonic() < end:
        time.sleep(0.2)


def main() -> None:
    """Measure and print."""
    parser = flags.parser(str(__doc__))
    parser.add_argument("--url", help="of a running server; default: one is started")
    parser.add_argument("--streams", type=flags.positive, default=8, help="honest callers, and clients beside them")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each turn")
    parser.add_argument("--turns", type=flags.positive, default=2, help="of each kind")
    parser.add_argument(
        "--slot",
        type=float,
        default=8.0,
        help="seconds between two requests of a client beside: long enough that the twins keep up, else hostile ones, "
        "which are refused sooner, come more often (default: %(default)s)",
    )
    parser.add_argument("--corpus", type=Path, default=CORPUS)
    parser.add_argument("--only", help="the hostile requests whose name holds this text")
    given = parser.parse_args()
    pairs = [pair for pair in read_corpus(given.corpus) if (given.only or "") in pair[0].name]
    if not pairs:
        raise ValueError(f"no request of {given.corpus} has a name that holds {given.only}")
    sides = {"harmless twins": [twin for _, twin in pairs], "hostile clients": [hostile for hostile, _ in pairs]}
    found: dict[str, list[Outcome]] = {side: [] for side in sides}
    config = TurbomindEngineConfig(cache_max_entry_count=0.2)
    for turn in range(given.turns):
        for side, others in sides.items():
            # A server of its own: what hostile requests keep busy, they may keep busy for long after they have gone.
            with nullcontext(given.url) if given.url else running_server(given.model_path, config) as url:
                wait_until_idle(url)
                asyncio.run(beside(url, sides["harmless twins"][:1], given.streams, WARM_UP_SECONDS, given.slot, turn))
                wait_until_idle(url)
                seed = given.seed + turn
                found[side] += asyncio.run(beside(url, others, given.streams, given.seconds, given.slot, seed))
    result = {side: Figures.of(outcomes) for side, outcomes in found.items()}
    header = ("beside", "honest answers", "refused or failed", "median", "p99", "max", "requests beside")
    print(table(header, [figures.row(side) for side, figures in result.items()]))
    twins, hostile = result["harmless twins"], result["hostile clients"]
    print(f"p99 {hostile.p99 / twins.p99:.2f} times, median {hostile.median / twins.median:.2f} times")
    told = {
        (outcome.name, outcome.end, outcome.detail)
        for side in found.values()
        for outcome in side
        if outcome.end in ("failed", "unanswered")
    }
    for name, ended, detail in sorted(told):
        print(f"{name}: {ended}: {detail}")
    if given.json:
        sides_told = {side: asdict(figures) for side, figures in result.items()}
        given.json.write_text(json.dumps({**sides_told, "machine": machine()}, indent=1), encoding="utf-8")


@dataclass(frozen=True)
class Figures:
    """What honest callers saw beside one kind of clients; times between tokens in seconds."""

    answers: int
    not_answered: int
    median: float
    p99: float
    longest: float
    beside: dict[str, int]

    @staticmethod
    def of(outcomes: list[Outcome]) -> Figures:
        """Return the figures of some turns."""
        ours = [outcome for outcome in outcomes if outcome.name == "honest"]
        gaps = [gap for outcome in ours for gap in outcome.gaps()]
        return Figures(
            answers=sum(outcome.end == "answered" for outcome in ours),
            not_answered=sum(outcome.end not in ("answered", "cut") for outcome in ours),
            median=percentile(gaps, 50),
            p99=percentile(gaps, 99),
            longest=max(gaps, default=float("nan")),
            beside=dict(Counter(outcome.end for outcome in outcomes if outcome.name != "honest")),
        )

    def row(self, side: str) -> list[str]:
        """Return a line of the table; the times are milliseconds."""
        times = (milliseconds(value) for value in (self.median, self.p99, self.longest))
        beside = ", ".join(f"{count} {end}" for end, count in sorted(self.beside.items()))
        return [side, str(self.answers), str(self.not_answered), *times, beside]


if __name__ == "__main__":
    flags.run(main)
