"""A call written as one JSON object: ``{"name": ..., "arguments": {...}}``. Families call the members differently."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from openai_gateway.tools.events import Progress
from openai_gateway.tools.json_prefix import JsonObjectReader

_STRING = r'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(
    rf'\s*\{{\s*(?:"(?:type|id|tool_call_id)"\s*:\s*{_STRING}\s*,\s*)*"(?:tool_)?name"\s*:\s*({_STRING})\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*(?=\{)',
    re.DOTALL,
)
# How a call may begin, as far as it has come: a call's first member is one of these.
_OPENING = re.compile(
    r'\s*(?:\{\s*(?:"(?:[a-z_]*$|(?:(?:tool_)?name|type|(?:tool_call_)?id|arguments|parameters|function)")|$)|$)'
)


class JsonCall:
    """Reads a call whose name is known as soon as it has come, and whose arguments stream.

    Parameters
    ----------
    names : collection of str
        The functions it may be; others are no call.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._text = ""
        self._object = JsonObjectReader()
        self._arguments: JsonObjectReader | None = None  # in them
        self._reported = 0  # up to where in the text

    def feed(self, text: str) -> Progress:
        """Take more text."""
        self._text += text
        progress = Progress()
        self._object.read(self._text)
        progress.is_broken = self._object.is_broken
        if self._arguments is None:
            head = _HEAD.match(self._text)
            if head is not None and head.end() <= self._object.position:
                name = _name(head[1])
                if name not in self._names:
                    return Progress(is_broken=True)
                progress.name = name
                self._reported = head.end()
                self._arguments = JsonObjectReader(self._reported)
            elif not _OPENING.match(self._text):
                return Progress(is_broken=True)
        if self._arguments is not None:
            self._arguments.read(self._text)
            progress.arguments = self._text[self._reported : self._arguments.position]
            self._reported = self._arguments.position
        if self._object.is_complete:
            self._complete(self._object.position, progress)
        return progress

    def finish(self) -> Progress:
        """The response is over before the object is."""
        return Progress(is_broken=True)

    def _complete(self, end: int, progress: Progress) -> None:
        progress.rest = self._text[end:]
        if self._arguments is None:  # its members come in another order
            call = _object(self._text[:end]) or {}
            name = call.get("name", call.get("tool_name"))
            arguments = call.get("arguments", call.get("parameters"))
            if isinstance(arguments, str):
                arguments = _object(arguments)
            said = as_json(arguments) if isinstance(arguments, dict) else None
            if said is not None and isinstance(name, str) and name in self._names:
                progress.name, progress.arguments = name, said
            else:
                progress.is_broken = True


def as_json(arguments: object) -> str | None:
    """Return a call's arguments as JSON text that UTF-8 can carry; None when JSON has no such values."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return text if _is_encodable(text) else json.dumps(arguments)


def _name(literal: str) -> str | None:
    try:
        name: str = json.loads(literal)
    except ValueError:
        return None
    return name


def _is_encodable(text: str) -> bool:
    """Return whether `text` is free of lone surrogates, which JSON can spell."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _object(text: str) -> dict[str, object] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
