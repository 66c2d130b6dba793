"""A call written as one JSON object: ``{"name": ..., "arguments": {...}}``."""

from __future__ import annotations

import json
import re

from openai_gateway.tools.events import Progress

_STRING = r'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(
    rf'\s*\{{\s*(?:"(?:type|id)"\s*:\s*{_STRING}\s*,\s*)*"name"\s*:\s*({_STRING})\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*(?=\{)',
    re.DOTALL,
)
# How a call may begin, as far as it has come: a call's first member is one of these.
_OPENING = re.compile(r'\s*(?:\{\s*(?:"(?:[a-z]*$|(?:name|type|id|arguments|parameters|function)")|$)|$)')
_STRUCTURE = re.compile(r'["\\{}\[\]]')


class Balance:
    """Finds where a JSON object ends, in text that comes in pieces.

    Parameters
    ----------
    begin : int
        Where it begins in the text.
    """

    def __init__(self, begin: int = 0) -> None:
        self._depth = 0
        self._in_string = False
        self._next = begin  # where to go on looking

    def end(self, text: str) -> int | None:
        """Return the position after the object's last brace; `text` is all there is so far."""
        while match := _STRUCTURE.search(text, self._next):
            self._next = match.end()
            char = match[0]
            if self._in_string:
                if char == "\\":
                    if self._next == len(text):  # what it escapes has not come yet
                        self._next -= 1
                        return None
                    self._next += 1
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return self._next
        self._next = len(text)
        return None


class JsonCall:
    """Reads a call whose name is known as soon as it has come, and whose arguments stream.

    Parameters
    ----------
    names : frozenset of str, optional
        The functions it may be; others are no call. None: any.
    """

    def __init__(self, names: frozenset[str] | None = None) -> None:
        self._names = names
        self._text = ""
        self._object = Balance()
        self._arguments: Balance | None = None  # in them
        self._begin = self._told = 0  # of the arguments, in the text
        self._end: int | None = None  # of the arguments

    def feed(self, text: str) -> Progress:
        """Take more text."""
        self._text += text
        progress = Progress()
        if not _OPENING.match(self._text):
            return Progress(is_broken=True)
        if self._arguments is None and (head := _HEAD.match(self._text)):
            name = _name(head[1])
            if name is None or not self._is_known(name):
                return Progress(is_broken=True)
            progress.name = name
            self._begin = self._told = head.end()
            self._arguments = Balance(self._begin)
        if self._arguments is not None and self._end is None:
            self._end = self._arguments.end(self._text)
            told = len(self._text) if self._end is None else self._end
            progress.arguments, self._told = self._text[self._told : told], told
            if self._end is not None and not _is_object(self._text[self._begin : self._end]):
                progress.is_broken = True
                return progress
        end = self._object.end(self._text)
        if end is not None:
            self._complete(end, progress)
        return progress

    def finish(self) -> Progress:
        """The answer is over before the object is."""
        return Progress(is_broken=True)

    def _is_known(self, name: str) -> bool:
        return self._names is None or name in self._names

    def _complete(self, end: int, progress: Progress) -> None:
        call = _object(self._text[:end])
        progress.rest = self._text[end:]
        if call is None:
            progress.is_broken = True
        elif self._arguments is None:  # its members come in another order
            name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
            if isinstance(arguments, str):
                arguments = _object(arguments)
            if not isinstance(name, str) or not isinstance(arguments, dict) or not self._is_known(name):
                progress.is_broken = True
                return
            progress.name, progress.arguments = name, json.dumps(arguments, ensure_ascii=False)


def _name(literal: str) -> str | None:
    try:
        name: str = json.loads(literal)
    except ValueError:
        return None
    return name


def _is_object(text: str) -> bool:
    return _object(text) is not None


def _object(text: str) -> dict[str, object] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
