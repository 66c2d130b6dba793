"""Reader of a tool call written as one JSON object, ``{"name": ..., "arguments": {...}}`` or with other names."""

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
_WITHOUT_ARGUMENTS = frozenset({"name", "tool_name", "type", "id", "tool_call_id"})  # members of such a call
HEAD_NAME = re.compile(rf'\{{\s*"name"\s*:\s*({_STRING})', re.DOTALL)
# How a call may begin, as far as it has come: a call's first member is one of these.
OPENING = re.compile(
    r'\s*(?:\{\s*(?:"(?:[a-z_]*$|(?:(?:tool_)?name|type|(?:tool_call_)?id|arguments|parameters|function)")|$)|$)'
)


class JsonCall:
    """Reads a call whose name is known as soon as it has come, and whose arguments stream."""

    def __init__(self, names: Collection[str], *, is_bare: bool = False) -> None:
        self._names = names  # the functions it may be; others are no call
        self._is_bare = is_bare  # without a tag, an object without arguments is none
        self._text = ""
        self._object = JsonObjectReader(skips_commas=True)
        self._arguments: JsonObjectReader | None = None  # in them
        self._reported = 0  # up to where in the text

    def feed(self, text: str) -> Progress:
        self._text = self._object.read(self._text + text)
        progress = Progress(is_broken=self._object.is_broken, recovered="comma" if self._object.has_skipped else "")
        if self._arguments is None:
            head = _HEAD.match(self._text)
            if head is not None and head.end() <= self._object.position:
                name = name_in(head[1])
                if name not in self._names:
                    return Progress(is_broken=True)
                progress.name = name
                self._reported = head.end()
                self._arguments = JsonObjectReader(self._reported)
            elif not OPENING.match(self._text):
                return Progress(is_broken=True)
        if self._arguments is not None:
            self._arguments.read(self._text, self._object.position)
            progress.arguments = self._text[self._reported : self._arguments.position]
            self._reported = self._arguments.position
        if self._object.is_complete:
            self._complete(self._object.position, progress)
        elif progress.is_broken and self._has_arguments and not self._is_bare:
            progress.is_broken, progress.recovered = False, "unclosed"
            progress.rest = self._text[self._object.position :]
        return progress

    def finish(self) -> Progress:
        """The response is over before the object is."""
        return Progress(rest="", recovered="unclosed") if self._has_arguments else Progress(is_broken=True)

    @property
    def _has_arguments(self) -> bool:
        """Nothing but the last brace is missing."""
        is_next = not self._text[self._reported : self._object.position].strip()
        return self._arguments is not None and self._arguments.is_complete and is_next

    def _complete(self, end: int, progress: Progress) -> None:
        progress.rest = self._text[end:]
        if self._arguments is None:  # its members come in another order, or are others
            call = call_of(object_in(self._text[:end]), needs_arguments=self._is_bare)
            if call is not None and call[0] in self._names:
                progress.name, progress.arguments = call
            else:
                progress.is_broken = True


def call_of(value: object, *, needs_arguments: bool = False) -> tuple[str, str] | None:
    """Return name and arguments (JSON text) of an object that is a call; None: it is none."""
    if not isinstance(value, dict):
        return None
    name = value.get("name", value.get("tool_name"))
    key = next((key for key in ("arguments", "parameters") if key in value), None)
    arguments = value[key] if key else None
    if key is None and (needs_arguments or not value.keys() <= _WITHOUT_ARGUMENTS):
        return None
    if isinstance(arguments, str):
        arguments = object_in(arguments) if arguments.strip() else None
        if arguments is None and value[key].strip():
            return None
    text = as_json({} if arguments is None else arguments)
    return (name, text) if text is not None and isinstance(name, str) and text.startswith("{") else None


def as_json(arguments: object) -> str | None:
    """Return a call's arguments as JSON text that UTF-8 can carry; None when JSON has no such values."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        return None
    return text if _is_encodable(text) else json.dumps(arguments)


def name_in(literal: str) -> str | None:
    """Return the value of a JSON string; None: it is none."""
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


def object_in(text: str) -> dict[str, object] | None:
    """Return a JSON object; None: the text is none, or cannot be decoded."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
