"""A JSON call between two marks."""

from __future__ import annotations

from openai_gateway.tools.events import Progress
from openai_gateway.tools.followed import FollowedCall


class MarkedCall(FollowedCall):
    """Reads a JSON call and the mark that closes it.

    Parameters
    ----------
    closing : str
        The mark after the call.
    """

    def __init__(self, closing: str) -> None:
        super().__init__()
        self._closing = closing

    def _follow(self, after: str, progress: Progress) -> None:
        if after.startswith(self._closing):
            progress.rest = after[len(self._closing) :]
        elif not self._closing.startswith(after):
            progress.is_broken = True
