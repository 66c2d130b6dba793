"""Fair shares of a bounded amount among callers. Who waits gets of it in turn, one API key after another."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Shares:
    """An amount of something, for the requests of one process.

    A key that waits for what is free has its turn before all that come after it, however little they want: what is
    large waits no longer than the keys before it. A key that has its share takes none of the others' turns.
    ``max_per_key``: what one key may have at a time, unless it has nothing; default: all. Requests without a key may
    have all.
    """

    def __init__(self, total: int, max_per_key: int | None = None) -> None:
        self._total = self._free = total  # what there is
        self._max_per_key = total if max_per_key is None else max_per_key
        self._reserved: Counter[str | None] = Counter()
        self._waiting: dict[str | None, deque[tuple[int, asyncio.Future[None]]]] = {}  # by key, whose turn is first

    @asynccontextmanager
    async def taken(self, key: str | None, amount: int = 1, seconds: float | None = None) -> AsyncIterator[None]:
        """Hold an amount, once it is the key's turn; as `take`."""
        await self.take(key, amount, seconds)
        try:
            yield
        finally:
            self.release(key, amount)

    async def take(self, key: str | None, amount: int = 1, seconds: float | None = None) -> None:
        """Return when the key has the amount, or all there is if that is less; see `release`.

        Raises `TimeoutError` if it does not have it after so many seconds.
        """
        amount = min(amount, self._total)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append((amount, granted))
        self._grant()
        try:
            await asyncio.wait([granted], timeout=seconds)
        except asyncio.CancelledError:
            if granted.done():
                self.release(key, amount)
            else:
                self._stop_waiting(key, amount, granted)
            raise
        if not granted.done():
            self._stop_waiting(key, amount, granted)
            raise TimeoutError

    def release(self, key: str | None, amount: int = 1) -> None:
        """Let others have what a key has taken."""
        amount = min(amount, self._total)
        self._free += amount
        self._reserved[key] -= amount
        if not self._reserved[key]:
            del self._reserved[key]
        self._grant()

    def _stop_waiting(self, key: str | None, amount: int, granted: asyncio.Future[None]) -> None:
        waiting = self._waiting[key]
        waiting.remove((amount, granted))
        if not waiting:
            del self._waiting[key]
        self._grant()  # it may have been in others' way

    def _grant(self) -> None:
        while (key := self._next()) is not _NOBODY:
            waiting = self._waiting.pop(key)
            amount, granted = waiting.popleft()
            if waiting:
                self._waiting[key] = waiting  # after the others
            self._free -= amount
            self._reserved[key] += amount
            granted.set_result(None)

    def _next(self) -> str | None:
        """Return the key that gets what it wants first."""
        for key, waiting in self._waiting.items():
            amount, _ = waiting[0]
            reserved = self._reserved[key]
            if key is None or not reserved or reserved + amount <= self._max_per_key:
                return key if amount <= self._free else _NOBODY
        return _NOBODY


_NOBODY = "\0"  # which no header can hold
