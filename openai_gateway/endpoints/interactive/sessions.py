"""Interactive sessions of this gateway process, and their owners. Their tokens are in the engine."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict

_REMEMBERED = 65536
_EXACT_BITS = 53  # of a number in JSON, whoever reads it
_ENGINE_BITS = 63


def engine_session(given: int, key: str | None) -> int:
    """Return the engine's id of the session that a caller calls `given`.

    Each API key has ids of its own: what callers of another key name reads, cancels and ends another session. That
    needs no memory, so it holds for all processes and after a restart. ``key``: the caller's; None: no keys are set,
    and everybody shares the engine's ids.
    """
    if key is None:
        return given
    digest = hmac.digest(key.encode(), b"session %d" % given, hashlib.sha256)
    return int.from_bytes(digest[:8], "big") >> (64 - _ENGINE_BITS)


class Sessions:
    """The engine's ids of conversations; the least recently used are forgotten first."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._open

    def new_id(self) -> int:
        """Return an id that nobody can predict, and that no conversation has."""
        while True:
            made = secrets.randbits(_EXACT_BITS)
            if made and made not in self._open:
                return made

    def hold(self, session_id: int) -> None:
        """Remember that a conversation continues."""
        self._open[session_id] = None
        self._open.move_to_end(session_id)
        if len(self._open) > _REMEMBERED:
            self._open.popitem(last=False)

    def drop(self, session_id: int) -> None:
        """Forget a conversation."""
        self._open.pop(session_id, None)
