"""How many requests may be asked at a time: fewer while clients ask, so that batches yield to them."""

from __future__ import annotations

import asyncio

from lmdeploy.serve.events import is_set_within
from openai_gateway.middleware.own_requests import OpenRequests

_LOOK_AGAIN = 0.1  # seconds; nothing signals when clients' requests end


class Slots:
    """Places for requests, given in the order in which they were asked for.

    Parameters
    ----------
    most
        Requests at a time while no client asks; each request of a client's takes a place, but the last one stays.
    clients
        Their open requests.
    """

    def __init__(self, most: int, clients: OpenRequests) -> None:
        self._most = most
        self._clients = clients
        self._taken = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def take(self) -> None:
        """Return when there is a place, which is the caller's until `free`."""
        async with self._turn:
            while self._taken >= max(1, self._most - self._clients.count):
                self._freed.clear()
                await is_set_within(self._freed, _LOOK_AGAIN)
            self._taken += 1

    def free(self) -> None:
        """Give a place back."""
        self._taken -= 1
        self._freed.set()
