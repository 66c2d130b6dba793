"""Mistral: ``[TOOL_CALLS]`` and a JSON list of calls."""

from __future__ import annotations

from openai_gateway.tools.events import Body, Progress
from openai_gateway.tools.json_call import JsonCall


class Mistral:
    """The notation of Mistral 7B v0.3, Mixtral 8x22B, Nemo and Large."""

    marks = ("[TOOL_CALLS]",)

    def body(self, mark: str) -> Body:
        """Return a reader for the first call of the list."""
        return _ListedCall("[")


class _ListedCall:
    """A call of a list, from the bracket or comma before it to the bracket or comma behind it.

    The list's end may be missing at the end of an answer.
    """

    def __init__(self, opening: str) -> None:
        self._opening = opening
        self._head = ""  # until the opening has come
        self._call: JsonCall | None = None
        self._after: str | None = None  # what came after the object

    def feed(self, text: str) -> Progress:
        if self._call is None:
            self._head += text
            opened = self._head.lstrip()
            if not opened.startswith(self._opening):
                return Progress(is_broken=bool(opened))
            self._call, text = JsonCall(), opened[len(self._opening) :]
        if self._after is None:
            progress = self._call.feed(text)
            if progress.is_broken or progress.rest is None:
                return progress
            self._after, progress.rest = progress.rest, None
        else:
            self._after += text
            progress = Progress()
        after = self._after.lstrip()
        if after.startswith("]"):
            progress.rest = after[1:]
        elif after.startswith(","):
            progress.rest, progress.following = after, _ListedCall(",")
        else:
            progress.is_broken = bool(after)
        return progress

    def finish(self) -> Progress:
        return Progress(is_broken=True) if self._after is None else Progress(rest="")
