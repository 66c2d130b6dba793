"""A JSON call and what has to follow it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from openai_gateway.tools.events import Progress
from openai_gateway.tools.json_call import JsonCall


class FollowedCall(ABC):
    """Reads a JSON call and what follows it, which may be missing at the very end of an answer."""

    def __init__(self) -> None:
        self._call = JsonCall()
        self._after: str | None = None  # what came after the object

    def feed(self, text: str) -> Progress:
        """Take more text."""
        if self._after is None:
            progress = self._call.feed(text)
            if progress.is_broken or progress.rest is None:
                return progress
            self._after, progress.rest = progress.rest, None
        else:
            self._after += text
            progress = Progress()
        self._follow(self._after.lstrip(), progress)
        return progress

    def finish(self) -> Progress:
        """The answer is over: a complete object will do."""
        return Progress(is_broken=True) if self._after is None else Progress(rest="")

    @abstractmethod
    def _follow(self, after: str, progress: Progress) -> None:
        """Decide by what came after the object whether the call is over, or none."""
