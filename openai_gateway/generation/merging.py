"""Merged reading of several engine streams; chunks that arrive while the reader is slow are delivered together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from lmdeploy.serve.client import GenerateChunk

MAX_WAITING = 512  # chunks; beyond, the engine's streams are not read until the reader has caught up

Arrived = tuple[int, GenerateChunk]  # which stream, and what


async def merge(streams: Sequence[AsyncGenerator[GenerateChunk, None]]) -> AsyncGenerator[list[Arrived], None]:
    """Yield the chunks of all streams as they come.

    Leaving early, or a failure in one of them, closes every stream, which cancels them in the engine. ``streams``: at
    least one. Yields all that has come since the last one; never empty.
    """
    merger = _Merger()
    tasks = [asyncio.ensure_future(merger.read(number, stream)) for number, stream in enumerate(streams)]
    everything = asyncio.gather(*tasks)
    everything.add_done_callback(lambda _: merger.wake_reader())
    try:
        while True:
            if merger.arrived:
                yield merger.take()
            elif everything.done():
                everything.result()
                return
            else:
                await merger.wait()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, everything, return_exceptions=True)


class _Merger:
    def __init__(self) -> None:
        self.arrived: list[Arrived] = []
        self._reader: asyncio.Future[None] | None = None  # waits for chunks
        self._room = asyncio.Event()
        self._room.set()

    async def read(self, number: int, stream: AsyncGenerator[GenerateChunk, None]) -> None:
        async with aclosing(stream):
            async for chunk in stream:
                self.arrived.append((number, chunk))
                self.wake_reader()
                if len(self.arrived) >= MAX_WAITING:
                    self._room.clear()
                    await self._room.wait()

    def wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def wait(self) -> None:
        self._reader = asyncio.get_running_loop().create_future()
        await self._reader

    def take(self) -> list[Arrived]:
        taken, self.arrived = self.arrived, []
        self._room.set()
        return taken
