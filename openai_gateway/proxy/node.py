"""Proxy node: served models, health and load of one server."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from dataclasses import dataclass, field

from pydantic import BaseModel, Field

_LATENCIES = 15  # kept a node


class NodeStatus(BaseModel):
    """State of a node, sent at registration and returned on request."""

    models: list[str] | None = None
    unfinished: int | None = Field(0, ge=0)
    latency: list[float] | None = None
    speed: float | None = Field(None, gt=0)


@dataclass(slots=True)
class Node:
    """One server."""

    url: str  # its base URL, without a slash at the end
    models: list[str]  # what it serves
    speed: float | None = None  # requests a second, as its operator says
    unfinished: int = 0  # requests it is working on for this proxy
    latency: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))  # seconds its last requests took
    is_up: bool = True  # whether it is in service
    down_since: float = field(default_factory=time.monotonic)  # when it was taken out of service (``time.monotonic``)

    @property
    def name(self) -> str:
        """Name in the header ``x-replica``: callers need not know the address."""
        return hashlib.blake2b(self.url.encode(), digest_size=4).hexdigest()

    def status(self) -> NodeStatus:
        """Return its public state."""
        return NodeStatus(models=self.models, unfinished=self.unfinished, latency=list(self.latency), speed=self.speed)


class Work:
    """Context manager around one request to a node: counts it, and times it if it is a success."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.is_success = False  # to be set: what a node refuses, it refuses quickly

    def __enter__(self) -> Work:
        self._begin = time.monotonic()
        self._node.unfinished += 1
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._node.unfinished -= 1
        if kind is None and self.is_success:
            self._node.latency.append(time.monotonic() - self._begin)
