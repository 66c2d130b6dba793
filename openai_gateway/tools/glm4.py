"""GLM-4: a turn of its own for each call, a line with the function's name, then its arguments as JSON."""

from __future__ import annotations

from openai_gateway.tools.events import Body
from openai_gateway.tools.named import NamedCall

_LINE_END = "\n"


class GLM4:
    """The notation of GLM-4. The mark of the first turn is in the prompt, so that a call may begin an answer bare.

    Parameters
    ----------
    names : frozenset of str
        The functions the model may call.
    """

    marks = ("<|assistant|>",)

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def body(self, mark: str) -> Body:
        """Return a reader for one call."""
        return NamedCall(_LINE_END, names=self._names)

    def may_begin(self, text: str) -> bool:
        """Return whether a call may begin so."""
        lines = (name + _LINE_END for name in self._names)
        return any(line.startswith(text) or text.startswith(line) for line in lines)
