"""The servers behind a proxy: which there are, which are in service, and how busy they are."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from openai_gateway.proxy.strategies import Strategy

logger = logging.getLogger(__name__)

_LATENCIES = 15  # kept a node


class NodeStatus(BaseModel):
    """What is told about a node: by itself when it registers, and by the proxy when it is asked."""

    models: list[str] | None = None
    unfinished: int | None = Field(0, ge=0)
    latency: list[float] | None = None
    speed: float | None = Field(None, gt=0)


@dataclass(slots=True)
class Node:
    """One server.

    Attributes
    ----------
    url : str
        Its base URL, without a slash at the end.
    models : list of str
        What it serves.
    speed : float, optional
        Requests a second, as its operator says.
    unfinished : int
        Requests it is working on for this proxy.
    latency : deque of float
        Seconds its last requests took.
    is_up : bool
        Whether it is in service.
    """

    url: str
    models: list[str]
    speed: float | None = None
    unfinished: int = 0
    latency: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))
    is_up: bool = True

    def status(self) -> NodeStatus:
        """Return what is told about it."""
        return NodeStatus(models=self.models, unfinished=self.unfinished, latency=list(self.latency), speed=self.speed)


class NodeTable:
    """All nodes. It is written to a file whenever a node comes or is removed.

    Parameters
    ----------
    strategy : Strategy
        Chooses among the nodes in service.
    state_file : Path, optional
        Read at first; None: nothing is kept.
    """

    def __init__(self, strategy: Strategy, state_file: Path | None) -> None:
        self._strategy = strategy
        self._file = state_file
        self._nodes: dict[str, Node] = {}
        self._changed = asyncio.Event()
        if state_file is not None and state_file.exists():
            self._load(state_file)

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._nodes.values()))

    @property
    def in_service(self) -> list[Node]:
        """The nodes that requests may go to."""
        return [node for node in self._nodes.values() if node.is_up]

    @property
    def models(self) -> list[str]:
        """What the nodes in service serve, each model once."""
        return list(dict.fromkeys(model for node in self.in_service for model in node.models))

    def add(self, url: str, models: list[str], speed: float | None) -> None:
        """Take a node into service; one that is known is brought up to date."""
        node = self._nodes.get(url)
        is_new = node is None or (node.models, node.speed) != (models, speed)
        if node is None:
            node = self._nodes[url] = Node(url, models)
            logger.warning("node %s is new", url)
        node.models, node.speed = models, speed
        self.mark_up(node)
        if is_new:
            self._save()

    def remove(self, url: str) -> None:
        """Forget a node."""
        if self._nodes.pop(url, None) is not None:
            logger.warning("node %s is removed", url)
            self._save()

    def mark_up(self, node: Node) -> None:
        """Take a node into service."""
        if not node.is_up:
            logger.warning("node %s is back", node.url)
        node.is_up = True
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def mark_down(self, node: Node, reason: object) -> None:
        """Take a node out of service until it is healthy."""
        if node.is_up:
            logger.warning("node %s is out of service: %r", node.url, reason)
        node.is_up = False

    def is_served(self, model: str) -> bool:
        """Return whether some node serves `model`, in service or not."""
        return any(model in node.models for node in self._nodes.values())

    def choose(self, model: str, besides: Collection[str] = ()) -> Node | None:
        """Return the node for the next request for `model`, none of the URLs `besides`; None when there is none."""
        able = [node for node in self.in_service if model in node.models and node.url not in besides]
        return self._strategy(able) if able else None

    async def wait_for_change(self, seconds: float) -> None:
        """Return when a node has come into service, or after `seconds`."""
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return

    def _load(self, path: Path) -> None:
        try:
            known = json.loads(path.read_text(encoding="utf-8"))["nodes"]
            for url, told in known.items():
                status = NodeStatus.model_validate(told)
                self._nodes[url] = Node(url, status.models or [], status.speed, is_up=False)
        except (OSError, ValueError, KeyError, AttributeError, ValidationError) as error:
            logger.error("the nodes in %s are lost: %s", path, error)

    def _save(self) -> None:
        if self._file is None:
            return
        nodes = {node.url: {"models": node.models, "speed": node.speed} for node in self._nodes.values()}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"nodes": nodes}, indent=2) + "\n", encoding="utf-8")
        new.replace(self._file)


class Work:
    """Context manager around one request to a node: counts it, and times it when it ends well."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def __enter__(self) -> Node:
        self._begin = time.monotonic()
        self._node.unfinished += 1
        return self._node

    def __exit__(self, kind: object, *_: object) -> None:
        self._node.unfinished -= 1
        if kind is None:
            self._node.latency.append(time.monotonic() - self._begin)
