"""Answer the requests of a file, several at a time, and write down what comes of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from itertools import chain, islice, repeat

from starlette.types import ASGIApp

from openai_gateway.batches.asking import RowResponse, ask
from openai_gateway.batches.results import Results
from openai_gateway.batches.rows import BadRow, Row, row_error, row_result
from openai_gateway.batches.slots import Slots

Ask = Callable[[Row], Awaitable[RowResponse]]
_AT_A_TIME = 32  # lines that are read
_BYTES_AT_A_TIME = 1024 * 1024
_LATER = (429, 503)  # full, or away: neither says anything about the request
_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)  # seconds before asking again, the last one for good


def asking(app: ASGIApp, key: str | None = None) -> Ask:
    """Return what asks an application, as the holder of a key."""

    async def ask_row(row: Row) -> RowResponse:
        return await ask(app, row.url, row.body, key)

    return ask_row


async def work_through(rows: Iterable[Row | BadRow], results: Results, slots: Slots, ask_row: Ask, name: str) -> None:
    """Ask every row that has no result yet.

    Parameters
    ----------
    rows
        Read in another thread.
    results
        Get an entry a request.
    slots
        How many at a time.
    ask_row
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

    async def work(row: Row) -> None:
        result, is_error = row_result(name, row, await _patiently(ask_row, row))
        results.add(row.line, result, is_error=is_error)

    try:
        async for row in _alongside(rows):
            if row.line in results.done:
                continue
            if isinstance(row, BadRow):
                results.add(row.line, row_error(name, row, row.code, row.message), is_error=True)
                continue
            await slots.take()
            if broken:
                slots.free()
                break
            task = asyncio.create_task(work(row))
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


async def _patiently(ask_row: Ask, row: Row) -> RowResponse:
    for pause in chain(_PAUSES, repeat(_PAUSES[-1])):
        response = await ask_row(row)
        if response.status not in _LATER:
            break
        await asyncio.sleep(pause)
    return response


async def _alongside(rows: Iterable[Row | BadRow]) -> AsyncIterator[Row | BadRow]:
    """Yield requests that are read in another thread, some at a time."""
    reading = iter(rows)
    while some := await asyncio.to_thread(_some, reading):
        for row in some:
            yield row


def _some(rows: Iterator[Row | BadRow]) -> list[Row | BadRow]:
    """Return the next requests: this many, or fewer where they are long."""
    some: list[Row | BadRow] = []
    size = 0
    for row in islice(rows, _AT_A_TIME):
        some.append(row)
        size += len(row.body) if isinstance(row, Row) else 0
        if size > _BYTES_AT_A_TIME:
            break
    return some
