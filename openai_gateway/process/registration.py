"""Registration of this server at a proxy, repeated so that a restarted proxy learns of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import httpx

from openai_gateway.gateway import Gateway

logger = logging.getLogger(__name__)

_TIMEOUT = 5.0  # seconds
_RETRY = 1.0  # seconds until the next attempt while there has been no success
_HEADERS = {"accept": "application/json"}


class Registration:
    """The place of a server at the proxy of its settings; none when they name no proxy."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Register, and continue registering."""
        if self._gateway.settings.proxy_url:
            self._task = asyncio.create_task(self._keep_registered())

    async def stop(self) -> None:
        """Leave the proxy, so that it sends no more requests."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with contextlib.suppress(httpx.HTTPError):
            async with self._connect() as http:
                await http.post("/nodes/remove", params={"node_url": self._gateway.settings.public_url})

    def _connect(self) -> httpx.AsyncClient:
        settings = self._gateway.settings
        key = {} if settings.proxy_key is None else {"authorization": f"Bearer {settings.proxy_key}"}
        return httpx.AsyncClient(
            base_url=settings.proxy_url or "", headers=_HEADERS | key, timeout=_TIMEOUT, trust_env=False
        )

    async def _keep_registered(self) -> None:
        settings = self._gateway.settings
        is_registered, complained = False, False
        async with self._connect() as http:
            while True:
                try:
                    await self._register(http)
                except Exception as error:
                    if is_registered or not complained:
                        logger.warning("could not register at the proxy %s: %s", settings.proxy_url, error)
                    is_registered, complained = False, True
                    await asyncio.sleep(_RETRY)
                    continue
                is_registered = True
                await asyncio.sleep(settings.heartbeat_seconds)

    async def _register(self, http: httpx.AsyncClient) -> None:
        # The engine may not be up yet: a server that cannot answer is not offered.
        models = [*(await self._gateway.models.named())]
        if not await self._gateway.is_ready():
            raise ConnectionError("the model is not ready")
        node = {"url": self._gateway.settings.public_url, "status": {"models": models}}
        response = await http.post("/nodes/add", json=node)
        response.raise_for_status()
