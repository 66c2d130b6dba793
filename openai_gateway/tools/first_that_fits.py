"""A call that may be written in one of several ways."""

from __future__ import annotations

from collections.abc import Sequence

from openai_gateway.tools.events import Body, Progress


class FirstThatFits:
    """Reads with several readers until one of them knows the function, and then with that one alone.

    Parameters
    ----------
    bodies : sequence of Body
        New ones; of two that know it at once the first is taken.
    """

    def __init__(self, bodies: Sequence[Body]) -> None:
        self._bodies = list(bodies)

    def feed(self, text: str) -> Progress:
        """Take more text."""
        if len(self._bodies) == 1:
            return self._bodies[0].feed(text)
        left = list[Body]()
        progress = Progress(is_broken=True)
        for body in self._bodies:
            progress = body.feed(text)
            if progress.is_broken:
                continue
            if progress.name is not None or progress.rest is not None:
                self._bodies = [body]
                return progress
            left.append(body)
        if not left:
            return Progress(is_broken=True)
        self._bodies = left
        return Progress()

    def finish(self) -> Progress:
        """The response is over."""
        if len(self._bodies) == 1:
            return self._bodies[0].finish()
        found = (body.finish() for body in self._bodies)
        return next((progress for progress in found if not progress.is_broken), Progress(is_broken=True))
