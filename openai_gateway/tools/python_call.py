"""A call written in Python: ``add(a=1, b=[2, "x"])``."""

from __future__ import annotations

import ast
import re

from openai_gateway.tools.events import Progress
from openai_gateway.tools.json_call import as_json

_NAME = re.compile(r"\s*([A-Za-z0-9_.-]{1,128})\s*\(")
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class PythonCall:
    """Reads a call up to its last bracket. Its arguments come at once: before, they are no JSON.

    Parameters
    ----------
    names : frozenset of str
        The functions it may be; others are no call.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._text = ""
        self._name: str | None = None
        self._begin = self._position = 0  # of what stands between the brackets; up to where it was read
        self._due = [")"]  # closing brackets
        self._quote = ""  # that ends the string being read

    def feed(self, text: str) -> Progress:
        """Take more text."""
        self._text += text
        if self._name is None and (head := _NAME.match(self._text)):
            self._name, self._begin = head[1], head.end()
            self._position = self._begin
        if self._name is None:
            beginning = self._text.strip()
            return Progress(is_broken=not any(name.startswith(beginning) for name in self._names))
        if self._name not in self._names or not self._read():
            return Progress(is_broken=True)
        if self._due:
            return Progress()
        arguments = keyword_arguments(f"f({self._text[self._begin : self._position]}")
        if arguments is None:
            return Progress(is_broken=True)
        return Progress(name=self._name, arguments=arguments, rest=self._text[self._position :])

    def finish(self) -> Progress:
        """The answer is over before the call is."""
        return Progress(is_broken=True)

    def _read(self) -> bool:
        """Read on, to the last bracket if it is there; return whether the brackets fit."""
        while self._due and self._position < len(self._text):
            char = self._text[self._position]
            if char == "\\" and self._quote:
                if self._position + 1 == len(self._text):
                    return True  # what it escapes is to come
                self._position += 1
            elif self._quote:
                self._quote = "" if char == self._quote else self._quote
            elif char in "\"'":
                self._quote = char
            elif char in _CLOSING:
                self._due.append(_CLOSING[char])
            elif char in _CLOSING.values() and char != self._due.pop():
                return False
            self._position += 1
        return True


def keyword_arguments(code: str) -> str | None:
    """Return the arguments (JSON text) of a call with literals for keywords; None when the code is anything else."""
    try:
        call = ast.parse(code, mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
            return None
        return as_json({str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords})
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        return None
