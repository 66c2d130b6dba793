"""Responses in the memory of one process."""

from __future__ import annotations

import time
from collections import OrderedDict

from openai_gateway.stored_responses.record import Bounds, StoredResponse


class MemoryStore:
    """Keeps responses until the process ends.

    Parameters
    ----------
    bounds
        For each API key.
    most_bytes
        Of all together, as there may be any number of callers behind a proxy; who keeps most loses what it has not used
        for longest.
    """

    def __init__(self, bounds: Bounds, most_bytes: int) -> None:
        self._bounds = bounds
        self._most_bytes = most_bytes
        self._owned: dict[str | None, _Owned] = {}

    async def put(self, key: str | None, stored: StoredResponse) -> bool:
        """Keep a response; as `ResponseStore.put`."""
        text = stored.encoded()
        if len(text) > self._bounds.owner_bytes:
            return False
        owned = self._owned.setdefault(key, _Owned())
        owned.add(stored.id, text)
        owned.drop_old(self._bounds)
        while sum(each.bytes for each in self._owned.values()) > self._most_bytes:
            max(self._owned.values(), key=lambda each: each.bytes).drop_oldest()
        return True

    async def get(self, key: str | None, response_id: str) -> bytes | None:
        """Return a response; as `ResponseStore.get`."""
        owned = self._owned.get(key)
        if owned is None:
            return None
        owned.drop_old(self._bounds)
        return owned.use(response_id)

    async def delete(self, key: str | None, response_id: str) -> bool:
        """Forget a response; as `ResponseStore.delete`."""
        owned = self._owned.get(key)
        return owned is not None and owned.remove(response_id)


class _Owned:
    """Responses of one API key, the one that was not used for longest first."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, tuple[bytes, float]] = OrderedDict()  # and when it was used
        self.bytes = 0

    def add(self, response_id: str, text: bytes) -> None:
        self.remove(response_id)
        self._texts[response_id] = text, time.monotonic()
        self.bytes += len(text)

    def use(self, response_id: str) -> bytes | None:
        found = self._texts.pop(response_id, None)
        if found is None:
            return None
        self._texts[response_id] = found[0], time.monotonic()
        return found[0]

    def remove(self, response_id: str) -> bool:
        found = self._texts.pop(response_id, None)
        if found is None:
            return False
        self.bytes -= len(found[0])
        return True

    def drop_oldest(self) -> None:
        self.remove(next(iter(self._texts)))

    def drop_old(self, bounds: Bounds) -> None:
        expired = time.monotonic() - bounds.seconds
        while self._texts:
            response_id, (_, used) = next(iter(self._texts.items()))
            is_full = self.bytes > bounds.owner_bytes or len(self._texts) > bounds.owner_count
            if used > expired and not is_full:
                return
            self.remove(response_id)
