"""Which interactive conversations this gateway has begun. Their tokens are in the engine."""

from __future__ import annotations

from collections import OrderedDict

_REMEMBERED = 65536


class Sessions:
    """Ids of conversations; the least recently used are forgotten first."""

    def __init__(self) -> None:
        self._held: OrderedDict[int, None] = OrderedDict()
        self._next = 0

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._held

    def new_id(self) -> int:
        """Return an id that no conversation has."""
        self._next += 1
        while self._next in self._held:
            self._next += 1
        return self._next

    def hold(self, session_id: int) -> None:
        """Remember that a conversation goes on."""
        self._held[session_id] = None
        self._held.move_to_end(session_id)
        if len(self._held) > _REMEMBERED:
            self._held.popitem(last=False)

    def drop(self, session_id: int) -> None:
        """Forget a conversation."""
        self._held.pop(session_id, None)
