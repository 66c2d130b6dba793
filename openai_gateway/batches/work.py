"""Concurrent execution of a batch's requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from itertools import chain, islice, repeat

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from lmdeploy.serve.events import is_set_within
from openai_gateway.batches.requests import BatchRequest, InvalidRequest, error_line, result_line
from openai_gateway.batches.results import Results
from openai_gateway.middleware.internal_requests import INTERNAL, OpenRequests

Dispatch = Callable[[BatchRequest], Awaitable[httpx.Response]]
_AT_A_TIME = 32  # lines that are read
_BYTES_AT_A_TIME = 1024 * 1024
_LATER = (429, 503)  # full, or away: neither says anything about the request
_POLL_SECONDS = 0.1  # seconds; nothing signals when clients' requests end
_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)  # seconds before asking again, the last one for good


class Slots:
    """Places for requests, given in the order in which they were asked for; fewer while clients ask."""

    def __init__(self, limit: int, clients: OpenRequests) -> None:
        # Requests at a time while no client asks; each request of a client's takes a place, but the last one stays
        self._limit = limit
        self._clients = clients
        self._taken = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def take(self) -> None:
        """Return when there is a place, which is the caller's until `free`."""
        async with self._turn:
            while self._taken >= max(1, self._limit - self._clients.count):
                self._freed.clear()
                await is_set_within(self._freed, _POLL_SECONDS)
            self._taken += 1

    def free(self) -> None:
        """Give a place back."""
        self._taken -= 1
        self._freed.set()


def dispatcher(app: ASGIApp, key: str | None = None) -> Dispatch:
    """Return a client of an application, its middleware included, without a socket; cancelling it cancels the request.

    ``key``: the API key that requests come with; it is not looked at again. None: there are none.
    """

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, INTERNAL: True, "lmdeploy.key": key}, receive, send)

    transport = httpx.ASGITransport(call, raise_app_exceptions=False, client=("batch", 0))

    async def dispatch(request: BatchRequest) -> httpx.Response:
        headers = {"content-type": "application/json"}
        sent = httpx.Request("POST", f"http://batch{request.url}", headers=headers, content=request.body)
        response = await transport.handle_async_request(sent)
        await response.aread()
        return response

    return dispatch


async def work_through(
    requests: Iterable[BatchRequest | InvalidRequest], results: Results, slots: Slots, dispatch: Dispatch, name: str
) -> None:
    """Dispatch every request that has no result yet.

    Raises `OSError` if the requests cannot be read, or a result not be written. Requests that were being asked have no
    result then, nor have they where this task is cancelled. ``requests``: read in another thread. ``dispatch``: what
    answers a request. While it answers that the server is full or away, it is asked again. ``name``: how ids of results
    begin.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def work(request: BatchRequest) -> None:
        result, is_error = result_line(name, request, await _patiently(dispatch, request))
        results.add(request.line, result, is_error=is_error)

    try:
        async for request in _alongside(requests):
            if request.line in results.done:
                continue
            if isinstance(request, InvalidRequest):
                results.add(request.line, error_line(name, request, request.code, request.message), is_error=True)
                continue
            await slots.take()
            tasks.add(task := asyncio.create_task(work(request)))
            task.add_done_callback(lambda _: slots.free())
            for ended in [task for task in tasks if task.done()]:
                tasks.discard(ended)
                ended.result()
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _patiently(dispatch: Dispatch, request: BatchRequest) -> httpx.Response:
    for pause in chain(_PAUSES, repeat(_PAUSES[-1])):
        response = await dispatch(request)
        if response.status_code not in _LATER:
            break
        await asyncio.sleep(pause)
    return response


async def _alongside(requests: Iterable[BatchRequest | InvalidRequest]) -> AsyncIterator[BatchRequest | InvalidRequest]:
    """Yield requests that are read in another thread, some at a time."""
    reading = iter(requests)
    while some := await asyncio.to_thread(_some, reading):
        for request in some:
            yield request


def _some(requests: Iterator[BatchRequest | InvalidRequest]) -> list[BatchRequest | InvalidRequest]:
    """Return the next requests: this many, or fewer where they are long."""
    some: list[BatchRequest | InvalidRequest] = []
    size = 0
    for request in islice(requests, _AT_A_TIME):
        some.append(request)
        size += len(request.body) if isinstance(request, BatchRequest) else 0
        if size > _BYTES_AT_A_TIME:
            break
    return some
