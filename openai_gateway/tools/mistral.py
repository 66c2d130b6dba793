"""Mistral: ``[TOOL_CALLS]`` and a JSON list of calls."""

from __future__ import annotations

from openai_gateway.tools.events import Body, Progress
from openai_gateway.tools.followed import FollowedCall


class Mistral:
    """The notation of Mistral 7B v0.3, Mixtral 8x22B, Nemo and Large."""

    marks = ("[TOOL_CALLS]",)

    def body(self, mark: str) -> Body:
        """Return a reader for the first call of the list."""
        return _ListedCall("[")


class _ListedCall(FollowedCall):
    """A call of a list, from the bracket or comma before it to the bracket or comma behind it."""

    def __init__(self, opening: str) -> None:
        super().__init__()
        self._opening = opening
        self._head: str | None = ""  # until the opening has come

    def feed(self, text: str) -> Progress:
        """Take more text."""
        if self._head is not None:
            self._head += text
            opened = self._head.lstrip()
            if not opened.startswith(self._opening):
                return Progress(is_broken=bool(opened))
            self._head, text = None, opened[len(self._opening) :]
        return super().feed(text)

    def _follow(self, after: str, progress: Progress) -> None:
        if after.startswith("]"):
            progress.rest = after[1:]
        elif after.startswith(","):
            progress.rest, progress.following = after, _ListedCall(",")
        else:
            progress.is_broken = bool(after)
