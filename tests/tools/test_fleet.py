"""The simulated fleet against queues whose times are known, and against a pencil."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tools.fleet import COLUMNS, STRATEGIES, Costs, Loads, Replicas, Trace, Traffic, read, sampled, simulate

ONE_BY_ONE = Costs(step=1, row=0, prompt=0, batch=1)  # a queue
SHARED = Costs(step=0, row=1, prompt=0, batch=10_000)  # all at once, each at 1/b of the speed
REQUESTS = 60_000


def arrivals(rate: float, responses: np.ndarray) -> Trace:
    """Return a trace of Poisson arrivals of requests that are nothing but their responses."""
    rows = len(responses)
    times = np.cumsum(np.random.default_rng(1).exponential(1 / rate, rows))
    nothing = {name: np.zeros(rows) for name in COLUMNS}
    return nothing | {"time": times, "session": np.arange(rows, dtype=float), "answer": responses}


def exponential(mean: float = 1.0) -> np.ndarray:
    return np.random.default_rng(2).exponential(mean, REQUESTS)


def mean_time(trace: Trace, costs: Costs, replicas: int = 1, strategy: str = "random") -> float:
    return simulate(trace, replicas, costs, strategy).whole_mean


def test_one_at_a_time_is_the_m_m_1_queue() -> None:
    assert mean_time(arrivals(0.7, exponential()), ONE_BY_ONE) == pytest.approx(1 / (1 - 0.7), rel=0.05)


def test_constant_times_halve_the_wait_as_pollaczek_and_khinchine_say() -> None:
    waits = mean_time(arrivals(0.7, np.ones(REQUESTS)), ONE_BY_ONE) - 1
    assert waits == pytest.approx(0.7 / (2 * (1 - 0.7)), rel=0.05)


@pytest.mark.parametrize("kind", ["constant", "exponential", "two kinds"])
def test_a_shared_processor_takes_the_same_mean_time_whatever_the_lengths_are(kind: str) -> None:
    two_kinds = np.where(np.random.default_rng(3).random(REQUESTS) < 0.9, 0.5, 5.5)
    responses = {"constant": np.ones(REQUESTS), "exponential": exponential(), "two kinds": two_kinds}[kind]
    assert mean_time(arrivals(0.6, responses), SHARED) == pytest.approx(1 / (1 - 0.6), rel=0.06)


def test_the_less_loaded_of_two_is_as_good_as_theory_says() -> None:
    # Mitzenmacher, 2001: sum over i of rate^(2^i - 2), for many queues.
    trace, rate, queues = arrivals(0.9 * 100, exponential()), 0.9, 100
    assert mean_time(trace, ONE_BY_ONE, queues, "power_of_two") == pytest.approx(
        sum(rate ** (2**i - 2) for i in range(1, 12)), rel=0.06
    )
    assert mean_time(trace, ONE_BY_ONE, queues, "random") > 5


def test_a_batch_of_three_is_what_a_pencil_gets() -> None:
    # Steps take 1 + b seconds; a prompt token 0.5. The second request's prompt holds up the first; the third waits.
    costs = Costs(step=1, row=1, prompt=0.5, batch=2, cache=1000)
    values = {"time": [0, 3, 4], "session": [0, 1, 2], "system": [0, 1, 2], "new": [2, 4, 2], "answer": [4, 1, 1]}
    trace = {name: np.array(values.get(name, [0] * 3), dtype=float) for name in COLUMNS}
    # First: prompt 0-1, alone 1-3 at 2 s a token (1 token), held up 3-5, then 3 s a token: second ends at 8.
    # Third: prompt 8-9, ends at 12 with the first's third token; the first has one left, alone: 14.
    fleet = Replicas(1, costs)
    ends: dict[int, float] = {}
    firsts: dict[int, float] = {}
    for row in range(3):
        assert fleet.next_end() > values["time"][row]
        came = fleet.begin(0, values["time"][row], row, values["new"][row], values["answer"][row])
        if came is not None:
            firsts[row] = came
    while fleet.next_end() < float("inf"):
        at = fleet.next_end()
        row, entered = fleet.end()
        ends[row] = at
        firsts |= dict(entered)
    assert firsts == {0: 1, 1: 5, 2: 9}
    assert ends == {1: 8, 2: 12, 0: 14}
    assert simulate(trace, 1, costs, "least_loaded").whole_mean == pytest.approx((14 + 5 + 8) / 3)


def test_caches_find_what_was_there_and_forget_the_oldest() -> None:
    replica = Replicas(1, Costs(cache=300))
    assert replica.found(0, 7, 100, 1, 0, 50) == 0
    assert replica.found(0, 7, 100, 1, 50, 50) == 150  # its second turn
    assert replica.found(0, 7, 100, 2, 0, 50) == 100  # another conversation with the same beginning
    assert replica.found(0, 8, 100, 3, 0, 50) == 0  # no room for all: the first conversation goes
    assert replica.found(0, 7, 100, 1, 100, 10) < 200


def test_conversations_find_more_where_they_stay_and_random_ones_less() -> None:
    trace = sampled(Traffic(requests=20_000, rate=100))
    found = {strategy: simulate(trace, 16, Costs(), strategy) for strategy in STRATEGIES}
    assert found["affinity"].found > 0.8 > found["random"].found
    assert found["session"].found > 0.8 > found["least_loaded"].found
    assert found["affinity"].first_mean < found["power_of_two"].first_mean / 2


def test_a_popular_beginning_does_not_drown_one_replica() -> None:
    trace = sampled(Traffic(requests=20_000, rate=250, systems=1, turns=1))
    by_affinity, two = (simulate(trace, 16, Costs(batch=16), strategy) for strategy in ("affinity", "power_of_two"))
    assert by_affinity.whole_p99 < 2 * two.whole_p99


def test_sampled_traces_are_conversations_in_order() -> None:
    trace = sampled(Traffic(requests=5000))
    assert len(trace["time"]) == 5000
    assert (np.diff(trace["time"]) >= 0).all()
    for session in np.unique(trace["session"])[:200]:
        rows = trace["session"] == session
        history = trace["history"][rows] + trace["new"][rows] + trace["answer"][rows]
        assert (trace["history"][rows][1:] == history[:-1]).all()
        assert len(set(trace["system"][rows])) == 1


def test_the_least_loaded_is_known_after_any_changes() -> None:
    chance = np.random.default_rng(0)
    loads, counts = Loads(7), [0] * 7
    for _ in range(3000):
        replica = int(chance.integers(7))
        change = -1 if counts[replica] and chance.random() < 0.5 else 1
        counts[replica] += change
        loads.add(replica, change)
        assert list(loads.of.values()) == counts
        assert loads.min_load == min(counts)
        assert counts[loads.idlest(chance.random())] == min(counts)


def test_a_trace_in_a_file_is_replayed(tmp_path: Path) -> None:
    trace = sampled(Traffic(requests=300))
    file = tmp_path / "trace.csv"
    rows = np.column_stack([trace[name] for name in COLUMNS])
    np.savetxt(file, rows, delimiter=",", header=",".join(COLUMNS), comments="", fmt="%.17g")
    assert (
        simulate(read(file), 4, Costs(), "power_of_two").whole_mean
        == simulate(trace, 4, Costs(), "power_of_two").whole_mean
    )
    command = [sys.executable, "-m", "tools.fleet", "--trace", str(file), "--strategies", "affinity", "--json"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(output)["strategy"] == "affinity"
    file.write_text("time,session\n0,1\n")
    wrong = subprocess.run(command, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "has no column system, system_tokens, history, new, answer" in wrong.stderr
