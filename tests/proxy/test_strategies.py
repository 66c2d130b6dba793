"""Which node is chosen, against counting and arithmetic."""

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_gateway.proxy.node import Node
from openai_gateway.proxy.nodes import NodeTable
from openai_gateway.proxy.strategies import STRATEGIES, by_chance, min_expected_latency, min_observed_latency


def node(name: str, **state: object) -> Node:
    return Node(name, ["m"], **state)  # type: ignore[arg-type]


def test_chance_follows_speed_and_the_mean_stands_in_for_what_is_not_reported() -> None:
    nodes = [node("slow", speed=1.0), node("fast", speed=3.0), node("silent")]
    chosen = Counter(by_chance(nodes).url for _ in range(12_000))
    # expected 2000, 6000, 4000; six standard deviations of a binomial are below 330
    assert abs(chosen["slow"] - 2000) < 330
    assert abs(chosen["fast"] - 6000) < 330
    assert abs(chosen["silent"] - 4000) < 330


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0.1, 100)), min_size=1, max_size=6))
def test_the_least_expected_latency_wins(states: list[tuple[int, float]]) -> None:
    nodes = [node(str(i), unfinished=unfinished, speed=speed) for i, (unfinished, speed) in enumerate(states)]
    chosen = min_expected_latency(nodes)
    assert chosen.speed is not None
    assert (chosen.unfinished + 1) / chosen.speed == min((count + 1) / speed for count, speed in states)


def test_equals_share_the_work() -> None:
    nodes = [node("a"), node("b")]
    assert set(Counter(min_expected_latency(nodes).url for _ in range(100))) == {"a", "b"}


def test_the_least_observed_latency_wins_and_newcomers_are_tried() -> None:
    quick, slow = node("quick", latency=deque([1.0, 2.0])), node("slow", latency=deque([3.0]))
    assert min_observed_latency([slow, quick]) is quick
    assert min_observed_latency([slow, quick, node("new")]).url == "new"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_only_nodes_in_service_with_the_model_are_chosen(strategy: str) -> None:
    table = NodeTable(STRATEGIES[strategy], None)
    table.add("http://a", ["m"], None)
    table.add("http://b", ["other"], None)
    table.add("http://c", ["m"], None)
    (down,) = [node for node in table if node.url == "http://c"]
    table.mark_down(down, "test")
    assert {table.choose("m").url for _ in range(20)} == {"http://a"}  # type: ignore[union-attr]
    assert table.choose("m", {"http://a"}) is None
    assert table.choose("nothing") is None
    assert table.models == ["m", "other"]
