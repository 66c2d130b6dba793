"""Health checks of nodes: those that fail leave, those that are well again return."""

from __future__ import annotations

import asyncio
import time

import aiohttp

from openai_gateway.proxy.node import Node
from openai_gateway.proxy.nodes import NodeTable
from openai_gateway.proxy.settings import ProxySettings

_TIMEOUT = aiohttp.ClientTimeout(total=2)
_TICK = 0.2  # seconds


async def watch_nodes(table: NodeTable, http: aiohttp.ClientSession, settings: ProxySettings) -> None:
    """Check every node again and again, until cancelled; evict those that have been out of service for long."""
    last: dict[str, float] = {}
    while True:
        now = time.monotonic()
        due = []
        for node in table:
            if not node.is_up and now - node.down_since > settings.evict_seconds:
                table.remove(node.url)
                continue
            pause = settings.check_seconds if node.is_up else settings.return_seconds
            if now - last.setdefault(node.url, now if node.is_up else 0.0) >= pause:
                last[node.url] = now
                due.append(node)
        await asyncio.gather(*(check(table, http, node) for node in due))
        await asyncio.sleep(min(_TICK, settings.return_seconds))


async def check(table: NodeTable, http: aiohttp.ClientSession, node: Node) -> None:
    """Take a node into service if it says it is healthy, else out of it."""
    try:
        async with http.get(f"{node.url}/health", timeout=_TIMEOUT, allow_redirects=False) as response:
            if response.status == 200:
                table.mark_up(node)
            else:
                table.mark_down(node, f"/health answers {response.status}")
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        table.mark_down(node, error)
