"""Reader of a tool call with each argument between tags, such as Qwen3-Coder's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lmdeploy.templates.schema_types import argument_types
from lmdeploy.templates.tool_call_formats import TaggedArguments
from openai_gateway.delimiters import beginning_at_end
from openai_gateway.tools.events import NAME, Progress, may_begin_name
from openai_gateway.tools.value_types import value_text

_MAX_KEY_LEN = 400  # characters, with the tags around it
_BLANKS = " \t\r\n"
_TEXT = ("string",)


class TaggedCall:
    """Reads a call up to the tag that closes it. Texts stream, other values come when they are whole.

    An argument ends at its closing tag where the next argument or the end of the call follows, so that the tag may
    are in its text; vLLM's parser for Qwen3-Coder does the same. ``tag``: what was found of it: the tag before
    several calls, or that before the name.
    """

    def __init__(self, form: TaggedArguments, tag: str, functions: Mapping[str, Mapping[str, Any]]) -> None:
        self._form = form
        # The schemas of the functions' arguments by the functions' names; others are no call
        self._functions = functions
        self._before_name = "" if form.call == tag else form.call
        self._text = ""  # not read yet
        self._name = ""  # once it is known
        self._is_reported = False  # the name
        self._keys = 0
        self._types: tuple[str, ...] | None = None  # of the argument being read; None: between arguments
        self._streams = False
        self._value = ""  # of the argument being read, where it does not stream
        self._at_begin = False  # of the argument

    def feed(self, text: str) -> Progress:
        self._text += text
        progress = Progress()
        if not self._name:
            self._read_name(progress)
        while self._name and progress.rest is None and not progress.is_broken:
            if not (self._read_key(progress) if self._types is None else self._read_value(progress)):
                break
        return progress

    def finish(self) -> Progress:
        """The response is over before the call is."""
        left, progress = self._text.strip(_BLANKS), Progress(rest="", recovered="unclosed")
        if self._types is not None and left == self._form.value_tag:  # it waited for what comes after
            self._end_value(self._types, progress)
            left = ""
        if left or self._types is not None or not self._is_reported:
            return Progress(is_broken=True, rest="")
        progress.arguments += "}" if self._keys else "{}"
        return progress

    def _read_name(self, progress: Progress) -> None:
        text = self._text.lstrip(_BLANKS)
        if not text.startswith(self._before_name):
            progress.is_broken = not self._before_name.startswith(text)
            return
        text = text[len(self._before_name) :].lstrip(_BLANKS)
        match = NAME.match(text)
        name = match[0] if match else ""
        if len(name) == len(text):
            progress.is_broken = not may_begin_name(name, self._functions)
            return
        behind, end = text[len(name) :].lstrip(_BLANKS), self._form.name_end.strip()
        if name not in self._functions or not (behind.startswith(end) or end.startswith(behind)):
            progress.is_broken = True
        elif behind.startswith(end):
            self._name, self._text = name, behind[len(end) :]

    def _read_key(self, progress: Progress) -> bool:
        """Read up to the next argument's value, or the end of the call; return whether it was there."""
        text, form = self._text.lstrip(_BLANKS), self._form
        ending = next((tag for tag in form.endings if text.startswith(tag)), None)
        match = form.key_pattern.match(text)
        if ending is None and match is None:
            begun = any(text.startswith(tag) or tag.startswith(text) for tag in (form.key, *form.endings))
            if not begun or len(text) > _MAX_KEY_LEN:
                progress.is_broken, progress.rest = True, text
            return False
        if not self._is_reported:
            self._is_reported, progress.name = True, self._name
        if ending is not None:
            progress.arguments += "}" if self._keys else "{}"
            progress.rest = text[len(ending) :]
        elif match is not None:
            self._begin_value(match["key"].strip(), match.groupdict().get("is_text"), progress)
            self._text = text[match.end() :]
        return True

    def _begin_value(self, key: str, is_text: str | None, progress: Progress) -> None:
        if is_text is not None:  # the call itself says so
            self._types = _TEXT if is_text == "true" else ()
        else:
            untyped = _TEXT if self._form.untyped == "text" else ()
            self._types = argument_types(self._functions[self._name], key) or untyped
        self._streams = self._types == _TEXT
        self._value, self._at_begin = "", self._form.pads
        progress.arguments += f"{', ' if self._keys else '{'}{json.dumps(key, ensure_ascii=False)}: "
        progress.arguments += '"' if self._streams else ""
        self._keys += 1

    def _read_value(self, progress: Progress) -> bool:
        """Read on in a value; return whether it ended."""
        if self._at_begin and self._text:
            self._at_begin = False
            self._text = self._text.removeprefix("\n")
        size, behind = self._find_end()
        value, self._text = self._text[:size], self._text[size:]
        if self._streams:
            progress.arguments += json.dumps(value, ensure_ascii=False)[1:-1]
        else:
            self._value += value
        if behind is None:
            return False
        assert self._types is not None
        self._text = self._text[behind:]
        self._end_value(self._types, progress)
        return True

    def _end_value(self, types: tuple[str, ...], progress: Progress) -> None:
        progress.arguments += '"' if self._streams else value_text(self._value, types)
        self._types = None

    def _find_end(self) -> tuple[int, int | None]:
        """Return how many characters belong to the value, and how many are its end; None: that has not come."""
        tag, text, begin = self._form.value_tag, self._text, 0
        followers = (self._form.key, *self._form.endings)
        while (index := text.find(tag, begin)) >= 0:
            follows = text[index + len(tag) :].lstrip(_BLANKS)
            size = self._without_padding(index)
            if follows.startswith(followers):
                return size, index + len(tag) - size
            if any(follower.startswith(follows) for follower in followers):
                return size, None  # it depends on what comes
            begin = index + 1
        return self._without_padding(len(text) - beginning_at_end(text, tag)), None

    def _without_padding(self, size: int) -> int:
        return size - (self._form.pads and self._text[:size].endswith("\n"))
