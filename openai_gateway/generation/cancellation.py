"""Cancellation of requests whose client has disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientDisconnected(Exception):
    """The client closed its connection before its response was complete."""


async def run_unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, which is cancelled when the client disconnects.

    Raises `ClientDisconnected` if the client left first. ``receive``: the ASGI channel of a request whose body has been
    read.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnected
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
