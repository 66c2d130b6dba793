"""Tell a proxy that this server is there, again and again, so that a proxy that was restarted learns of it too."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from openai_gateway.gateway import Gateway

logger = logging.getLogger(__name__)

_TIMEOUT = 5.0  # seconds
_RETRY = 1.0  # seconds until the next attempt while there has been no success
_HEADERS = {"accept": "application/json"}


@asynccontextmanager
async def registered(gateway: Gateway) -> AsyncIterator[None]:
    """Keep this server registered at the proxy of its settings, if there is one; take it out in the end."""
    url = gateway.settings.proxy_url
    if not url:
        yield
        return
    async with httpx.AsyncClient(base_url=url, headers=_HEADERS, timeout=_TIMEOUT, trust_env=False) as http:
        task = asyncio.create_task(_keep_registered(http, gateway))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            with contextlib.suppress(httpx.HTTPError):
                await http.post("/nodes/remove", params={"node_url": gateway.settings.public_url})


async def _keep_registered(http: httpx.AsyncClient, gateway: Gateway) -> None:
    complained = False
    while True:
        try:
            # The engine may not be up yet: a server that cannot answer is not offered.
            node = {"url": gateway.settings.public_url, "status": {"models": [await gateway.model_name()]}}
            if not await gateway.client.is_ready():
                raise ConnectionError("the model is not ready")
            (await http.post("/nodes/add", json=node)).raise_for_status()
        except Exception as error:
            if not complained:
                logger.warning("could not register at the proxy %s: %s", http.base_url, error)
            complained = True
            await asyncio.sleep(_RETRY)
            continue
        if complained:
            logger.warning("registered at the proxy %s", http.base_url)
        complained = False
        await asyncio.sleep(gateway.settings.heartbeat_seconds)
