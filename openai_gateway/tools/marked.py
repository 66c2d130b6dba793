"""A JSON call between two marks."""

from __future__ import annotations

from openai_gateway.tools.events import Progress
from openai_gateway.tools.json_call import JsonCall


class MarkedCall:
    """Reads a JSON call and the mark that closes it, which may be missing at the very end of an answer.

    Parameters
    ----------
    closing : str
        The mark after the call.
    """

    def __init__(self, closing: str) -> None:
        self._closing = closing
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
        after = self._after.lstrip()
        if after.startswith(self._closing):
            progress.rest = after[len(self._closing) :]
        elif not self._closing.startswith(after):
            progress.is_broken = True
        return progress

    def finish(self) -> Progress:
        """The answer is over: a complete object will do."""
        return Progress(is_broken=True) if self._after is None else Progress(rest="")
