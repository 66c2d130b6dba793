"""How often the user has spoken in each session, for chat templates that number it."""

from collections import OrderedDict

_KEPT = 1 << 16  # sessions, those spoken in last; far more than an engine holds


class SessionRounds:
    """Counts the rounds of sessions: requests that go on in a session do not bring its beginning along.

    What the engine refuses behind this point is counted too, until the client begins the session anew.
    """

    def __init__(self) -> None:
        self._rounds: OrderedDict[int, int] = OrderedDict()

    def held(self, session_id: int) -> int:
        """Return how many rounds the session holds, as far as is known: at least one."""
        return max(1, self._rounds.get(session_id, 1))

    def add(self, session_id: int, rounds: int, *, is_first: bool) -> None:
        """Note further rounds of a session, which may begin with them."""
        before = 0 if is_first else self._rounds.get(session_id, 0)
        self._rounds[session_id] = before + rounds
        self._rounds.move_to_end(session_id)
        if len(self._rounds) > _KEPT:
            self._rounds.popitem(last=False)
