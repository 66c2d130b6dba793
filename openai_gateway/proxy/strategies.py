"""Load-balancing strategies of the proxy."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from openai_gateway.proxy.node import Node

Strategy = Callable[[Sequence[Node]], Node]


def by_chance(nodes: Sequence[Node]) -> Node:
    """Return a random node; the faster one is, the likelier."""
    return random.choices(nodes, _speeds(nodes))[0]


def min_expected_latency(nodes: Sequence[Node]) -> Node:
    """Return the node that will have finished first, going by its speed and by how many requests it has."""
    speeds = _speeds(nodes)
    expected = [((node.unfinished + 1) / speed, random.random()) for node, speed in zip(nodes, speeds, strict=True)]
    return nodes[expected.index(min(expected))]


def min_observed_latency(nodes: Sequence[Node]) -> Node:
    """Return the node whose last requests took least; one that has had none is tried."""
    observed = [
        (sum(node.latency) / len(node.latency) if node.latency else 0.0, node.unfinished, random.random())
        for node in nodes
    ]
    return nodes[observed.index(min(observed))]


STRATEGIES: dict[str, Strategy] = {
    "random": by_chance,
    "min_expected_latency": min_expected_latency,
    "min_observed_latency": min_observed_latency,
}


def _speeds(nodes: Sequence[Node]) -> list[float]:
    """Return the nodes' speeds; one that does not report has the mean of the others."""
    known = [node.speed for node in nodes if node.speed is not None]
    mean = sum(known) / len(known) if known else 1.0
    return [mean if node.speed is None else node.speed for node in nodes]
