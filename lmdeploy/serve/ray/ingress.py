"""Ingress deployment: a proxy in front of the replicas, whose nodes are those that Ray runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from lmdeploy.serve.ray.replica import Server
from openai_gateway.proxy.app import create_proxy
from openai_gateway.proxy.nodes import NodeTable
from openai_gateway.proxy.settings import ProxySettings

logger = logging.getLogger(__name__)

_POLL = 0.5  # seconds


@serve.ingress()
class Ingress:
    """Ray Serve deployment in front of the replicas."""

    def __init__(self, replicas: DeploymentHandle, settings: ProxySettings) -> None:
        self._replicas = replicas
        self._settings = settings

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the proxy; Ray calls this once."""
        return create_proxy(self._settings, self._members)

    @asynccontextmanager
    async def _members(self, table: NodeTable) -> AsyncIterator[None]:
        """Keep the replicas in a proxy's table, from the first one on."""
        while not list(table):
            await self._update(table)
            await asyncio.sleep(_POLL)
        following = asyncio.create_task(self._follow(table))
        try:
            yield
        finally:
            following.cancel()

    async def _follow(self, table: NodeTable) -> None:
        while True:
            await asyncio.sleep(_POLL)
            await self._update(table)

    async def _update(self, table: NodeTable) -> None:
        try:
            found = await self._replicas.broadcast("server").results_async(return_exceptions=True)
        except (RayError, RayServeException) as error:
            logger.warning("the replicas are not known now: %s", error)
            return
        servers = {server.url: server for server in found if isinstance(server, Server)}
        known = {node.url for node in table}
        for url in servers.keys() - known:
            table.add(url, servers[url].models, None)
        for url in known - servers.keys():
            table.remove(url)
