"""Node table of a proxy: registered nodes and their health."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from pydantic import ValidationError

from lmdeploy.serve.events import is_set_within
from openai_gateway.errors import ApiError
from openai_gateway.proxy.addresses import base_url, identity_of
from openai_gateway.proxy.node import Node, NodeStatus
from openai_gateway.proxy.prompt import NO_PROMPT, Prompt
from openai_gateway.proxy.strategies import Strategy

logger = logging.getLogger(__name__)


class NodeTable:
    """All nodes, each once, however its host is written; kept in a file whenever a node comes or is removed."""

    def __init__(self, strategy: Strategy, state_file: Path | None) -> None:
        self._strategy = strategy  # chooses among the nodes in service
        self._file = state_file  # read at first; None: nothing is kept
        self._nodes: dict[tuple[str, int], Node] = {}
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
        """Models of the nodes in service, each once."""
        return list(dict.fromkeys(model for node in self.in_service for model in node.models))

    def add(self, url: str, models: list[str], speed: float | None) -> None:
        """Take a node into service; one that is known, also by another URL, is brought up to date."""
        node = self._nodes.get(identity_of(url))
        is_new = node is None or (node.url, node.models, node.speed) != (url, models, speed)
        if node is None:
            node = self._nodes[identity_of(url)] = Node(url, models)
            logger.warning("node %s is new", url)
        node.url, node.models, node.speed = url, models, speed
        self.mark_up(node)
        if is_new:
            self._save()

    def remove(self, url: str) -> bool:
        """Forget a node; return whether there was one."""
        node = self._nodes.pop(identity_of(url), None)
        if node is not None:
            logger.warning("node %s is removed", node.url)
            self._save()
        return node is not None

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
            node.down_since = time.monotonic()
        node.is_up = False

    def is_served(self, model: str) -> bool:
        """Return whether some node serves `model`, in service or not."""
        return any(model in node.models for node in self._nodes.values())

    def choose(self, model: str, besides: Collection[str] = (), prompt: Prompt = NO_PROMPT) -> Node | None:
        """Return the node for the next request for `model`, none of the URLs `besides`; None when there is none."""
        able = [node for node in self.in_service if model in node.models and node.url not in besides]
        return self._strategy(able, prompt) if able else None

    async def wait_for_change(self, seconds: float) -> None:
        """Return when a node has come into service, or after `seconds`."""
        await is_set_within(self._changed, seconds)

    def _load(self, path: Path) -> None:
        try:
            known = json.loads(path.read_text(encoding="utf-8"))["nodes"]
            for url, stored in known.items():
                status = NodeStatus.model_validate(stored)
                url = base_url(url)
                self._nodes[identity_of(url)] = Node(url, status.models or [], status.speed, is_up=False)
        except (OSError, ValueError, KeyError, AttributeError, ValidationError, ApiError) as error:
            logger.error("the nodes in %s are lost: %s", path, error)

    def _save(self) -> None:
        if self._file is None:
            return
        nodes = {node.url: {"models": node.models, "speed": node.speed} for node in self._nodes.values()}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({"nodes": nodes}, indent=2) + "\n", encoding="utf-8")
        new.replace(self._file)
