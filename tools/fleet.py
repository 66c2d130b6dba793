"""Replay a trace over a simulated fleet, and compare ways to route.

    python -m tools.fleet --replicas 64 --requests 500000 --rate 400 --strategies random power_of_two affinity

A replica is an engine with a continuous batch: a step gives each of its b sequences a token and takes ``step + row b``
seconds; prompts go first, one after the other, and take ``prompt`` seconds for each token that is not in its prefix
cache; what finds the batch full waits in order. Time between events is not stepped through: all sequences of a batch
advance alike, so each replica needs only a clock that counts steps (docs/deployment/capacity.md).
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from math import inf
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lmdeploy.serve.affinity import SLACK, Affinity

COLUMNS = ("time", "session", "system", "system_tokens", "history", "new", "answer")
"""Of a trace: arrival in seconds; who asks; which shared beginning; its tokens, those of earlier turns, new, to get."""

_CHUNK = 50_000  # requests that are turned into Python's numbers at once


@dataclass(frozen=True)
class Costs:
    """An engine, as measured or planned."""

    # Seconds of a step, and for each of its sequences
    step: float = 0.010
    row: float = 0.0001
    prompt: float = 0.00003  # seconds for each token of a prompt
    batch: int = 64  # most sequences in a step
    cache: int = 400_000  # tokens that the prefix cache holds


@dataclass(frozen=True)
class Traffic:
    """Conversations: each has a shared beginning and some turns, each turn brings all that was said."""

    # How many, and how many a second
    requests: int = 200_000
    rate: float = 400.0
    # Mean turns of a conversation, and seconds from one to the next
    turns: float = 4.0
    think: float = 30.0
    # Shared prefixes (popular ones far more often: Zipf), and tokens of each
    systems: int = 200
    system_tokens: int = 800
    # Mean tokens a turn brings and gets (exponential)
    new: float = 150.0
    answer: float = 150.0


Trace = dict[str, npt.NDArray[np.float64]]


def sampled(traffic: Traffic, seed: int = 0) -> Trace:
    """Return a trace by chance, in the order of arrival."""
    chance = np.random.default_rng(seed)
    turns = chance.geometric(1 / traffic.turns, int(1.1 * traffic.requests / traffic.turns) + 100)
    turns = turns[: int(np.searchsorted(np.cumsum(turns), traffic.requests)) + 1]
    session = np.repeat(np.arange(len(turns)), turns)
    first = np.cumsum(turns) - turns  # of each session, its first row
    rows = len(session)
    gaps = chance.exponential(traffic.think, rows)
    gaps[first] = 0
    lasted = np.cumsum(gaps)
    begin = chance.uniform(0, traffic.requests / traffic.rate, len(turns))
    new = np.maximum(1, chance.exponential(traffic.new, rows).astype(np.int64))
    response = np.maximum(1, chance.exponential(traffic.answer, rows).astype(np.int64))
    history = np.cumsum(new + response) - (new + response)
    popularity = 1 / np.arange(1, traffic.systems + 1)
    system = chance.choice(traffic.systems, len(turns), p=popularity / popularity.sum())
    arrived = begin[session] + lasted - lasted[first][session]
    order = np.argsort(arrived, kind="stable")[: traffic.requests]
    shared = np.full(rows, traffic.system_tokens)
    columns = (arrived, session, system[session], shared, history - history[first][session], new, response)
    return {name: column[order].astype(np.float64) for name, column in zip(COLUMNS, columns, strict=True)}


def read(file: Path) -> Trace:
    """Return a trace from a CSV file whose first line names the columns.

    Raises `ValueError` if a column is missing, or something is no number.
    """
    with file.open(encoding="utf-8") as lines:
        names = [name.strip() for name in lines.readline().split(",")]
        if missing := [name for name in COLUMNS if name not in names]:
            raise ValueError(f"{file} has no column {', '.join(missing)}; a trace has {', '.join(COLUMNS)}")
        values = np.loadtxt(lines, delimiter=",", ndmin=2)
    values = values[np.argsort(values[:, names.index("time")], kind="stable")]
    return {name: np.ascontiguousarray(values[:, names.index(name)]) for name in COLUMNS}


class Loads:
    """Open requests of each replica, and who has the fewest: all in constant time."""

    def __init__(self, replicas: int) -> None:
        self.of = dict.fromkeys(range(replicas), 0)
        self.min_load = 0
        self._with: list[list[int]] = [list(range(replicas))]  # replicas by load
        self._index = list(range(replicas))  # of each in its list

    def add(self, replica: int, change: int) -> None:
        """Count a request that begins or ends."""
        load = self.of[replica]
        row, index = self._with[load], self._index[replica]
        last = row.pop()
        if last != replica:
            row[index] = last
            self._index[last] = index
        load += change
        if load == len(self._with):
            self._with.append([])
        self.of[replica] = load
        self._index[replica] = len(self._with[load])
        self._with[load].append(replica)
        if load < self.min_load:
            self.min_load = load
        while not self._with[self.min_load]:
            self.min_load += 1

    def idlest(self, number: float) -> int:
        """Return one of those with the fewest, by a number in [0, 1)."""
        row = self._with[self.min_load]
        return row[int(number * len(row))]


class _Engine:
    """One engine of a fleet."""

    __slots__ = ("batch", "cached", "clock", "room", "steps", "version", "waiting")

    def __init__(self, room: float) -> None:
        self.clock = 0.0  # until when it is simulated; prompts run up to then
        self.steps = 0.0  # tokens that a sequence would have got, had it been there always
        self.batch: list[tuple[float, int]] = []  # heap of (steps at its end, row)
        self.waiting: deque[tuple[int, float, float]] = deque()
        self.cached: OrderedDict[int, float] = OrderedDict()
        self.room = room
        self.version = 0


class Replicas:
    """The engines of a fleet. Times are absolute; a request is a row of the trace."""

    def __init__(self, count: int, costs: Costs) -> None:
        self.loads = Loads(count)
        self._step, self._row, self._prompt, self._max_batch = costs.step, costs.row, costs.prompt, costs.batch
        self._engines = [_Engine(costs.cache) for _ in range(count)]
        self._ends: list[tuple[float, int, int]] = []  # heap of (time, replica, version)

    def next_end(self) -> float:
        """Return when the next response ends."""
        ends, engines = self._ends, self._engines
        while ends and engines[ends[0][1]].version != ends[0][2]:
            heappop(ends)
        return ends[0][0] if ends else inf

    def end(self) -> tuple[int, list[tuple[int, float]]]:
        """End the next response; return its row, and rows and times of first tokens of what enters the batch for it."""
        now, replica, _ = heappop(self._ends)
        engine = self._engines[replica]
        self._advance(engine, now)
        _, row = heappop(engine.batch)
        self.loads.add(replica, -1)
        entered = []
        if engine.waiting:
            waiting, computed, response = engine.waiting.popleft()
            entered.append((waiting, self._enter(engine, now, waiting, computed, response)))
        self._plan_end(replica, engine)
        return row, entered

    def begin(self, replica: int, now: float, row: int, computed: float, response: float) -> float | None:
        """Give a replica a request; return when its first token comes, None where it waits."""
        self.loads.add(replica, 1)
        engine = self._engines[replica]
        if len(engine.batch) >= self._max_batch:
            engine.waiting.append((row, computed, response))
            return None
        self._advance(engine, now)
        first = self._enter(engine, now, row, computed, response)
        self._plan_end(replica, engine)
        return first

    def found(
        self, replica: int, system: int, system_tokens: float, session: int, history: float, more: float
    ) -> float:
        """Return the tokens of a prompt that the cache has, and put what it will have then."""
        engine = self._engines[replica]
        cached = engine.cached
        system = -1 - system  # keys of both kinds in one table
        cached_tokens = cached.pop(session, 0.0)
        found = 0.0
        if system in cached:
            found = system_tokens + min(cached_tokens, history)
            cached.move_to_end(system)
        else:
            engine.room -= system_tokens
            cached[system] = system_tokens
        engine.room += cached_tokens - (history + more)
        cached[session] = history + more
        cached.move_to_end(system)
        while engine.room < 0 and cached:
            engine.room += cached.popitem(last=False)[1]
        return found

    def _enter(self, engine: _Engine, now: float, row: int, computed: float, response: float) -> float:
        engine.clock = first = max(engine.clock, now) + computed * self._prompt
        heappush(engine.batch, (engine.steps + response, row))
        return first

    def _advance(self, engine: _Engine, now: float) -> None:
        passed = now - engine.clock
        if passed > 0:
            if batch := len(engine.batch):
                engine.steps += passed / (self._step + self._row * batch)
            engine.clock = now

    def _plan_end(self, replica: int, engine: _Engine) -> None:
        engine.version = version = engine.version + 1
        batch = engine.batch
        if batch:
            left = batch[0][0] - engine.steps
            heappush(self._ends, (engine.clock + left * (self._step + self._row * len(batch)), replica, version))


Chooser = Callable[[float, float, int, int], int]
"""Two numbers in [0, 1), session and system -> replica."""


def strategies(replicas: int, loads: Loads, slack: int = SLACK) -> dict[str, Chooser]:
    """Return the ways to route by name.

    ``random``; ``rotating``, one after the other; ``two``, the less loaded of two random ones; ``least`` of all;
    ``session``, always the same for a conversation; ``affinity``, as `lmdeploy.serve.affinity` says, else ``two``.
    """
    affinity: Affinity[int] = Affinity(slack, max_keys=max(200_000, 200 * replicas))
    turns = itertools.cycle(range(replicas))

    def two(one: float, other: float, session: int, system: int) -> int:
        first, second = int(one * replicas), int(other * replicas)
        return first if loads.of[first] <= loads.of[second] else second

    def by_affinity(one: float, other: float, session: int, system: int) -> int:
        keys = (-1 - system, session)
        preferred, _ = affinity.preferred(keys, None, loads.of, loads.min_load)
        chosen = two(one, other, session, system) if preferred is None else preferred
        affinity.sent(keys, None, chosen)
        return chosen

    return {
        "random": lambda one, other, session, system: int(one * replicas),
        "round_robin": lambda one, other, session, system: next(turns),
        "power_of_two": two,
        "least_loaded": lambda one, other, session, system: loads.idlest(one),
        "session": lambda one, other, session, system: session * 2_654_435_761 % 2**32 % replicas,
        "affinity": by_affinity,
    }


STRATEGIES = tuple(strategies(1, Loads(1)))


@dataclass(frozen=True)
class Result:
    """Result of a run; times in seconds, of all requests but the first tenth."""

    strategy: str
    # To the first token
    first_mean: float
    first_p50: float
    first_p99: float
    # To the last
    whole_mean: float
    whole_p50: float
    whole_p99: float
    found: float  # share of the prompts' tokens that caches had
    simulated: float  # requests simulated a second of processor time


def simulate(trace: Trace, replicas: int, costs: Costs, strategy: str, slack: int = SLACK, seed: int = 0) -> Result:
    """Replay a trace, whose rows are in the order of arrival."""
    begin = time.process_time()
    fleet = Replicas(replicas, costs)
    choose = strategies(replicas, fleet.loads, slack)[strategy]
    rows = len(trace["time"])
    first, last = np.zeros(rows), np.zeros(rows)
    chance = np.random.default_rng(seed)
    found_tokens = 0.0

    def end_one() -> None:
        ended = fleet.next_end()
        row, entered = fleet.end()
        last[row] = ended
        for waiting, came in entered:
            first[waiting] = came

    for start in range(0, rows, _CHUNK):
        columns = [trace[name][start : start + _CHUNK].tolist() for name in COLUMNS]
        numbers = chance.random((2, len(columns[0]))).tolist()
        for row, (now, session, system, system_tokens, history, new, response, one, other) in enumerate(
            zip(*columns, *numbers, strict=True), start
        ):
            while fleet.next_end() <= now:
                end_one()
            chosen = choose(one, other, int(session), int(system))
            prompt = system_tokens + history + new
            found = fleet.found(chosen, int(system), system_tokens, int(session), history, new + response)
            found_tokens += found
            came = fleet.begin(chosen, now, row, prompt - found, response)
            if came is not None:
                first[row] = came
    while fleet.next_end() < inf:
        end_one()
    seconds = time.process_time() - begin
    measured = slice(rows // 10, None)
    to_first, to_last = (times[measured] - trace["time"][measured] for times in (first, last))
    prompts = sum(float(trace[name].sum()) for name in ("system_tokens", "history", "new"))
    found = found_tokens / prompts if prompts else 0.0
    return Result(strategy, *_summary(to_first), *_summary(to_last), found, rows / seconds)


def _summary(times: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    """Return mean, median and the 99th percentile."""
    p50, p99 = np.percentile(times, (50, 99))
    return float(times.mean()), float(p50), float(p99)


def main() -> None:
    """Simulate each strategy and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, metavar="FILE", help=f"CSV with {','.join(COLUMNS)}; default: sampled")
    parser.add_argument("--replicas", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    parser.add_argument("--slack", type=int, default=SLACK, help="of affinity (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    for kind in (Costs(), Traffic()):
        group = parser.add_argument_group(type(kind).__name__.lower())
        for name, value in asdict(kind).items():
            group.add_argument(
                f"--{name.replace('_', '-')}", type=type(value), default=value, help="default: %(default)s"
            )
    args = parser.parse_args()
    gc.disable()  # nothing here refers to itself, and looking through all replicas again and again takes its time
    costs = Costs(**{name: getattr(args, name) for name in asdict(Costs())})
    traffic = Traffic(**{name: getattr(args, name) for name in asdict(Traffic())})
    if args.replicas < 1:
        parser.error(f"--replicas must be at least 1, got {args.replicas}")
    try:
        trace = read(args.trace) if args.trace else sampled(traffic, args.seed)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print("" if args.json else _HEAD, end="", flush=True)
    for strategy in args.strategies:
        result = simulate(trace, args.replicas, costs, strategy, args.slack, args.seed)
        print(json.dumps(asdict(result)) if args.json else _line(result), flush=True)


_HEAD = """| strategy | TTFT: mean | p50 | p99 | E2E latency: mean | p50 | p99 | found in caches | simulated |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


def _line(result: Result) -> str:
    measurements = " | ".join(f"{seconds:.3f} s" for seconds in list(asdict(result).values())[1:7])
    return f"| {result.strategy} | {measurements} | {result.found:.1%} | {result.simulated:,.0f}/s |"


if __name__ == "__main__":
    main()
