"""uvicorn server without periodic wake-ups while idle."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import FrameType

import uvicorn

from lmdeploy.logs import Stopping
from lmdeploy.serve.events import is_set_within

_TICK = 1.0  # seconds: the date in responses' headers is as old


class QuietServer(uvicorn.Server):
    """A uvicorn server that wakes up once a second, in place of ten times, and at once to end.

    ``should_exit = True`` ends it, from any thread and from a signal's handler.
    """

    _exits = False
    _woken: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    @property
    def should_exit(self) -> bool:
        """Whether the server is to end."""
        return self._exits

    @should_exit.setter
    def should_exit(self, exits: bool) -> None:
        self._exits = exits
        if exits and self._woken is not None:
            loop, event = self._woken
            with suppress(RuntimeError):  # it has ended by now
                loop.call_soon_threadsafe(event.set)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Announce that the server ends, and end it."""
        Stopping.announce()
        super().handle_exit(sig, frame)

    async def main_loop(self) -> None:
        """Serve until asked to end."""
        event = asyncio.Event()
        self._woken = asyncio.get_running_loop(), event
        while not await self.on_tick(0):  # 0: a tick that reports the date
            await is_set_within(event, _TICK)
