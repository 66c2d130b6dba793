"""Load-balancing strategies of the proxy."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from lmdeploy.serve.affinity import Affinity, model_key
from openai_gateway.proxy.node import Node
from openai_gateway.proxy.prompt import NO_PROMPT, Prompt

Strategy = Callable[[Sequence[Node], Prompt], Node]
_CHOICES = 2  # of which the less loaded one is taken, where nothing speaks for a node


def by_chance(nodes: Sequence[Node], _: Prompt = NO_PROMPT) -> Node:
    """Return a random node; the faster one is, the likelier."""
    return random.choices(nodes, _speeds(nodes))[0]


def min_expected_latency(nodes: Sequence[Node], _: Prompt = NO_PROMPT) -> Node:
    """Return the node that will have finished first, going by its speed and by how many requests it has."""
    speeds = _speeds(nodes)
    expected = [((node.unfinished + 1) / speed, random.random()) for node, speed in zip(nodes, speeds, strict=True)]
    return nodes[expected.index(min(expected))]


def min_observed_latency(nodes: Sequence[Node], _: Prompt = NO_PROMPT) -> Node:
    """Return the node whose last requests took least; one that has had none is tried."""
    observed = [
        (sum(node.latency) / len(node.latency) if node.latency else 0.0, node.unfinished, random.random())
        for node in nodes
    ]
    return nodes[observed.index(min(observed))]


class PrefixAffinity:
    """Strategy that returns the node that holds a request's session, the longest prefix of its prompt, or its adapter.

    A session stays where it is; the others give way to load. Other requests go to the less loaded of two.
    """

    def __init__(self) -> None:
        self._affinity: Affinity[str] = Affinity()

    def __call__(self, nodes: Sequence[Node], prompt: Prompt = NO_PROMPT) -> Node:
        """Return the node for a request, and remember it."""
        by_url = {node.url: node for node in nodes}
        loads = {node.url: node.unfinished for node in nodes}
        # A node's first model is there always, adapters and further models are loaded.
        is_loaded = any(node.models[0] != prompt.model for node in nodes)
        keys = (model_key(prompt.model), *prompt.keys) if is_loaded else prompt.keys
        preferred, _ = self._affinity.preferred(keys, prompt.session, loads, min(loads.values()))
        some = random.sample(nodes, min(_CHOICES, len(nodes)))
        node = min(some, key=lambda node: node.unfinished) if preferred is None else by_url[preferred]
        self._affinity.sent(keys, prompt.session, node.url)
        return node


STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "random": lambda: by_chance,
    "min_expected_latency": lambda: min_expected_latency,
    "min_observed_latency": lambda: min_observed_latency,
    "affinity": PrefixAffinity,
}


def _speeds(nodes: Sequence[Node]) -> list[float]:
    """Return the nodes' speeds; one that does not report has the mean of the others."""
    known = [node.speed for node in nodes if node.speed is not None]
    mean = sum(known) / len(known) if known else 1.0
    return [mean if node.speed is None else node.speed for node in nodes]
