"""Limits of browser sessions, whose state Gradio keeps in memory: a bounded number, of a bounded size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

MAX_PAGES = 1000  # that are open
MAX_BYTES = 256 * 2**20
MAX_SESSION_BYTES = 32 * 2**20
ALWAYS_BYTES = 256 * 2**10  # a session of this size is served whatever the others take
MAX_ORPHANED, MAX_ORPHANED_BYTES = 100, 16 * 2**20  # of sessions without a page, which may come back to them


class SessionsFull(Exception):
    """There is no space for what a session sends."""


@dataclass
class _Session:
    """A session."""

    # Bytes of the last body of each event: Gradio keeps the last value of everything on the page
    bodies: dict[int, int] = field(default_factory=dict)
    kept: int = 0  # bytes of its conversation
    open: int = 0  # pages and requests
    pages: int = 0  # pages alone

    @property
    def size(self) -> int:
        return sum(self.bodies.values()) + self.kept


class Sessions:
    """Bounds the sessions, and evicts the oldest of those that nobody has open."""

    def __init__(self, kept: Callable[[str], int], evict: Callable[[str], None]) -> None:
        self._kept = kept  # returns about how many bytes a session's conversation has
        self._evict = evict  # called with the name of a session that is evicted
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        """Return whether a session is known."""
        return name in self._sessions

    @contextmanager
    def request(self, name: str, event: int, size: int) -> Iterator[None]:
        """Count a request of a session while it is open: for an event, with this many bytes.

        Raises `SessionsFull` if there is no space for it.
        """
        known = self._sessions.get(name, _Session())
        more = size - known.bodies.get(event, 0)
        others = sum(session.size for session in self._sessions.values() if session is not known)
        total = known.size + more
        if total > MAX_SESSION_BYTES or (total > ALWAYS_BYTES and others + total > MAX_BYTES):
            raise SessionsFull
        with self._opened(name, known):
            known.bodies[event] = size
            yield

    @contextmanager
    def page(self, name: str) -> Iterator[None]:
        """Keep a session as long as its page is open; raise `SessionsFull` if there is no space for it."""
        if sum(session.pages for session in self._sessions.values()) >= MAX_PAGES:
            raise SessionsFull
        known = self._sessions.get(name, _Session())
        with self._opened(name, known):
            known.pages += 1
            try:
                yield
            finally:
                known.pages -= 1

    @contextmanager
    def _opened(self, name: str, session: _Session) -> Iterator[None]:
        self._sessions[name] = session
        self._sessions.move_to_end(name)
        session.open += 1
        try:
            yield
        finally:
            session.open -= 1
            self._sessions.move_to_end(name)
            session.kept = self._kept(name)
            self._evict_some()

    def _evict_some(self) -> None:
        left = [(name, session) for name, session in self._sessions.items() if not session.open]
        count, size = len(left), sum(session.size for _, session in left)
        for name, session in left:
            if count <= MAX_ORPHANED and size <= MAX_ORPHANED_BYTES:
                return
            del self._sessions[name]
            self._evict(name)
            count, size = count - 1, size - session.size
