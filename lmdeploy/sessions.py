"""Sessions of the engine: the state that the prompt of a next turn depends on."""

import threading
from collections import OrderedDict
from typing import NamedTuple

_KEPT = 1 << 16  # sessions, those spoken in last; far more than an engine holds


class SessionState(NamedTuple):
    """State of a session in the engine.

    ``rounds``: how often the user has spoken, for templates that number it. ``is_turn_closed``: whether the model ended
    its last turn itself. Else the template's end of a turn is still to come.
    """

    rounds: int = 1
    is_turn_closed: bool = True


class SessionStates:
    """Histories of sessions, whose later requests do not resend them.

    What is not known here is taken for a session of one round, answered to its end. Safe to use from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: OrderedDict[int, SessionState] = OrderedDict()  # guarded by _lock

    def get(self, session_id: int) -> SessionState:
        """Return a session's state, as far as is known: at least one round."""
        with self._lock:
            state = self._states.get(session_id, SessionState())
        return state._replace(rounds=max(1, state.rounds))

    def add(self, session_id: int, rounds: int, *, is_first: bool, is_turn_closed: bool = True) -> None:
        """Record further rounds of a session, which may begin with them, and how the last one ended."""
        with self._lock:
            before = 0 if is_first else self._states.get(session_id, SessionState()).rounds
            self._states[session_id] = SessionState(before + rounds, is_turn_closed)
            self._states.move_to_end(session_id)
            if len(self._states) > _KEPT:
                self._states.popitem(last=False)

    def evict(self, session_id: int) -> None:
        """Record the end of a session."""
        with self._lock:
            self._states.pop(session_id, None)
