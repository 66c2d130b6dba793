"""Recovery of malformed tool calls whose function and arguments are beyond doubt."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence

from openai_gateway.tools.events import Body, Progress
from openai_gateway.tools.json_call import HEAD_NAME, OPENING, call_of, name_in, object_in
from openai_gateway.tools.json_prefix import JsonObjectReader

_BETWEEN = re.compile(r"(?:\s|```\w*|[\[\],;])*")  # objects
_PYTHON = re.compile(r"\s*(?:\[\s*)?(?:\{\s*(?:'|$)|$)")  # how a dictionary begins that is no JSON
_MAX_TRIES = 8  # a closing tag may be within a string
_CALLS = list[tuple[str, str]]  # names and arguments


class OtherFormat:
    """Reads a call in a format that is not the model's."""

    def __init__(self, body: Body) -> None:
        self._body = body

    def feed(self, text: str) -> Progress:
        return _marked(self._body.feed(text), "format")

    def finish(self) -> Progress:
        return _marked(self._body.finish(), "format")


class NothingButObjects:
    """Reads a response that is JSON objects of calls and nothing else, which may be in blocks of code."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names  # the functions they may be of
        self._text = ""
        self._begin = 0  # of the object being read
        self._object: JsonObjectReader | None = None
        self._calls: _CALLS = []

    def feed(self, text: str) -> Progress:
        """Take more text; the calls are reported at the end."""
        self._text += text
        while True:
            if self._object is None:
                end = self._end_of_blanks()
                if "```".startswith(self._text[end:]):
                    return Progress()  # it goes on
                if self._text[end] != "{":
                    return Progress(is_broken=True)
                self._begin, self._object = end, JsonObjectReader(end)
            self._object.read(self._text)
            begun = self._text[self._begin : self._object.position]
            head = HEAD_NAME.match(begun)
            if self._object.is_broken or (head and name_in(head[1]) not in self._names) or not OPENING.match(begun):
                return Progress(is_broken=True)
            if not self._object.is_complete:
                return Progress()
            call = call_of(object_in(begun), needs_arguments=True)
            if call is None or call[0] not in self._names:
                return Progress(is_broken=True)
            self._calls.append(call)
            self._begin, self._object = self._object.position, None

    def finish(self) -> Progress:
        """The response is over, and with it the last call."""
        if self._object is not None or self._end_of_blanks() < len(self._text) or not self._calls:
            return Progress(is_broken=True)
        return _reported(self._calls, "", "object")

    def _end_of_blanks(self) -> int:
        between = _BETWEEN.match(self._text, self._begin)
        assert between is not None
        return between.end()


class PythonObjects:
    """Reads a call, or a list of calls, written as Python writes dictionaries."""

    def __init__(self, closing: str, names: Collection[str]) -> None:
        self._closing = closing  # the tag after them
        self._names = names  # the functions they may be of
        self._text = ""
        self._searched = self._tries = 0

    def feed(self, text: str) -> Progress:
        self._text += text
        while (index := self._text.find(self._closing, self._searched)) >= 0 and self._tries < _MAX_TRIES:
            self._searched, self._tries = index + 1, self._tries + 1
            if calls := self._read(self._text[:index]):
                return _reported(calls, self._text[index + len(self._closing) :], "python")
        self._searched = max(self._searched, len(self._text) - len(self._closing) + 1)
        return Progress(is_broken=self._tries == _MAX_TRIES or not _PYTHON.match(self._text))

    def finish(self) -> Progress:
        """The response is over: whole calls will do."""
        calls = self._read(self._text)
        return _reported(calls, "", "python") if calls else Progress(is_broken=True)

    def _read(self, code: str) -> _CALLS | None:
        try:
            value = ast.literal_eval(code.strip())
        except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
            return None
        calls = [call_of(item) for item in (value if isinstance(value, list) else [value])]
        return [call for call in calls if call and call[0] in self._names] if all(calls) else None


class _Found:
    """Reports calls that were read before."""

    def __init__(self, calls: Sequence[tuple[str, str]], kind: str) -> None:
        self._calls = calls  # names and arguments, at least one
        self._kind = kind

    def feed(self, text: str) -> Progress:
        """Take what comes after the calls."""
        return _reported(self._calls, text, self._kind)

    def finish(self) -> Progress:
        return _reported(self._calls, "", self._kind)


def _reported(calls: Sequence[tuple[str, str]], rest: str, kind: str) -> Progress:
    (name, arguments), *others = calls
    following = _Found(others, kind) if others else None
    return Progress(name=name, arguments=arguments, rest=rest, following=following, recovered=kind)


def _marked(progress: Progress, kind: str) -> Progress:
    if progress.following is not None:
        progress.following = OtherFormat(progress.following)
    progress.recovered = progress.recovered or kind
    return progress
