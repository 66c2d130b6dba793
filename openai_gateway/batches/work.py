"""Answer the requests of a file, several at a time, and write down what comes of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from itertools import chain, islice, repeat

from starlette.types import ASGIApp

from openai_gateway.batches.asking import BatchResponse, ask
from openai_gateway.batches.requests import BatchRequest, InvalidRequest, error_line, result_line
from openai_gateway.batches.results import Results
from openai_gateway.batches.slots import Slots

Ask = Callable[[BatchRequest], Awaitable[BatchResponse]]
_AT_A_TIME = 32  # lines that are read
_BYTES_AT_A_TIME = 1024 * 1024
_LATER = (429, 503)  # full, or away: neither says anything about the request
_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)  # seconds before asking again, the last one for good


def asking(app: ASGIApp, key: str | None = None) -> Ask:
    """Return what asks an application, as the holder of a key."""

    async def ask_request(request: BatchRequest) -> BatchResponse:
        return await ask(app, request.url, request.body, key)

    return ask_request


async def work_through(
    requests: Iterable[BatchRequest | InvalidRequest], results: Results, slots: Slots, ask_request: Ask, name: str
) -> None:
    """Ask every request that has no result yet.

    Parameters
    ----------
    requests
        Read in another thread.
    results
        Get an entry a request.
    slots
        How many at a time.
    ask_request
        What answers a request. While it answers that the server is full or away, it is asked again.
    name
        How ids of results begin.

    Raises
    ------
    OSError
        The requests cannot be read, or a result not be written. Requests that were being asked have no result then,
        nor have they where this task is cancelled.
    """
    tasks: set[asyncio.Task[None]] = set()
    broken: list[BaseException] = []

    def ended(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        slots.free()
        if not task.cancelled() and (error := task.exception()) is not None:
            broken.append(error)

    async def work(request: BatchRequest) -> None:
        result, is_error = result_line(name, request, await _patiently(ask_request, request))
        results.add(request.line, result, is_error=is_error)

    try:
        async for request in _alongside(requests):
            if request.line in results.done:
                continue
            if isinstance(request, InvalidRequest):
                results.add(request.line, error_line(name, request, request.code, request.message), is_error=True)
                continue
            await slots.take()
            if broken:
                slots.free()
                break
            task = asyncio.create_task(work(request))
            tasks.add(task)
            task.add_done_callback(ended)
        while tasks and not broken:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if broken:
        raise broken[0]


async def _patiently(ask_request: Ask, request: BatchRequest) -> BatchResponse:
    for pause in chain(_PAUSES, repeat(_PAUSES[-1])):
        response = await ask_request(request)
        if response.status not in _LATER:
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
