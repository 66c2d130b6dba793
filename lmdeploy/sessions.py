"""Sessions of the engine: the state that the prompt of a next turn depends on."""

import threading
from collections import OrderedDict
from typing import NamedTuple

_KEPT = 1 << 16  # sessions, those spoken in last; far more than an engine holds


class HeldSession(NamedTuple):
    """A conversation in the engine.

    Parameters
    ----------
    rounds
        How often the user has spoken, for templates that number it.
    is_turn_closed
        Whether the model ended its last turn itself. Else the template's end of a turn is still to come.
    """

    rounds: int = 1
    is_turn_closed: bool = True


class HeldSessions:
    """Counts what sessions hold: requests that continue in one do not bring its beginning along.

    What is not known here is taken for a session of one round, answered to its end. Safe to use from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[int, HeldSession] = OrderedDict()  # guarded by _lock

    def get(self, session_id: int) -> HeldSession:
        """Return a session's state, as far as is known: at least one round."""
        with self._lock:
            held = self._held.get(session_id, HeldSession())
        return held._replace(rounds=max(1, held.rounds))

    def add(self, session_id: int, rounds: int, *, is_first: bool, is_turn_closed: bool = True) -> None:
        """Note further rounds of a session, which may begin with them, and how the last one ended."""
        with self._lock:
            before = 0 if is_first else self._held.get(session_id, HeldSession()).rounds
            self._held[session_id] = HeldSession(before + rounds, is_turn_closed)
            self._held.move_to_end(session_id)
            if len(self._held) > _KEPT:
                self._held.popitem(last=False)

    def forget(self, session_id: int) -> None:
        """Note that the session is over."""
        with self._lock:
            self._held.pop(session_id, None)
