"""Reader of a tool call with bare names and its own quotes, as Gemma 4 writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from lmdeploy.templates.tool_call_formats import QuotedArguments
from openai_gateway.delimiters import beginning_at_end
from openai_gateway.tools.events import NAME, Progress, may_begin_name
from openai_gateway.tools.json_prefix import MAX_DEPTH

_BARE = re.compile(r"[^\s,:{}\[\]]+")
_BLANKS = " \t\r\n"
_WORDS = {"true": "true", "false": "false", "null": "null", "none": "null", "nil": "null"}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_CLOSING = {"{": "}", "[": "]"}
_MAX_BARE_LEN = 256  # characters


class QuotedCall:
    """Reads a call; its arguments stream as JSON."""

    def __init__(self, form: QuotedArguments, functions: Mapping[str, Mapping[str, Any]]) -> None:
        self._form = form
        self._functions = functions  # by the names that it may have
        self._text = ""  # not read yet
        self._due: list[str] | None = None  # closing brackets; None: the arguments have not begun, none: they are over
        self._in_string = self._is_key = False
        self._expects = ""  # one of: key, colon, value, end (of a value)
        self._may_close = False  # nothing is in the object or list yet

    def feed(self, text: str) -> Progress:
        self._text += text
        progress = Progress()
        if self._due is None:
            self._read_name(progress)
        while self._due and self._text and not progress.is_broken:
            if not (self._read_string(progress) if self._in_string else self._read_next(progress)):
                break
        if self._due == [] and not progress.is_broken:
            self._close(progress)
        return progress

    def finish(self) -> Progress:
        """The response is over: complete arguments will do."""
        return Progress(rest="") if self._due == [] else Progress(is_broken=True, rest="")

    def _read_name(self, progress: Progress) -> None:
        text, before = self._text.lstrip(_BLANKS), self._form.before_name
        if not text.startswith(before):
            progress.is_broken = not before.startswith(text)
            return
        text = text[len(before) :]
        match = NAME.match(text)
        name = match[0] if match else ""
        if len(name) == len(text):
            progress.is_broken = not may_begin_name(name, self._functions)
        elif name not in self._functions or text[len(name)] != "{":
            progress.is_broken = True
        else:
            progress.name, progress.arguments = name, "{"
            self._text, self._due = text[len(name) + 1 :], ["}"]
            self._expects, self._may_close = "key", True

    def _read_string(self, progress: Progress) -> bool:
        text, end, rest = self._text.partition(self._form.quote)
        if not end:
            kept = beginning_at_end(text, self._form.quote)
            text, rest = text[: len(text) - kept], text[len(text) - kept :]
        progress.arguments += json.dumps(text, ensure_ascii=False)[1:-1] + ('"' if end else "")
        self._text = rest
        if end:
            self._in_string = False
            self._expects = "colon" if self._is_key else "end"
        return bool(end)

    def _read_next(self, progress: Progress) -> bool:
        """Read what comes between strings; return whether it was whole."""
        assert self._due is not None
        self._text = text = self._text.lstrip(_BLANKS)
        if not text:
            return False
        char, quote = text[0], self._form.quote
        if char == self._due[-1] and (self._may_close or self._expects == "end"):
            self._due.pop()
            self._expects, self._may_close = "end", False
        elif char == "," and self._expects == "end":
            self._expects = "key" if self._due[-1] == "}" else "value"
            char = ", "
        elif char == ":" and self._expects == "colon":
            self._expects = "value"
            char = ": "
        elif self._expects == "value" and char in _CLOSING and len(self._due) < MAX_DEPTH:
            self._due.append(_CLOSING[char])
            self._expects, self._may_close = "key" if char == "{" else "value", True
        elif self._expects in ("key", "value"):
            return self._read_token(text, quote, progress)
        else:
            progress.is_broken, progress.rest = True, text
            return False
        progress.arguments += char
        self._text = text[1:]
        return True

    def _read_token(self, text: str, quote: str, progress: Progress) -> bool:
        """Read the beginning of a string, or a bare name or value."""
        is_key = self._expects == "key"
        if text.startswith(quote):
            self._in_string, self._is_key, self._may_close = True, is_key, False
            progress.arguments += '"'
            self._text = text[len(quote) :]
            return True
        match = _BARE.match(text)
        if quote.startswith(text) or (match and match.end() == len(text) and len(text) <= _MAX_BARE_LEN):
            return False  # it continues
        bare = match[0] if match else ""
        literal = json.dumps(bare, ensure_ascii=False) if is_key else _value(bare)
        if not bare or literal is None or len(bare) > _MAX_BARE_LEN:
            progress.is_broken, progress.rest = True, text
            return False
        progress.arguments += literal
        self._text, self._may_close = text[len(bare) :], False
        self._expects = "colon" if is_key else "end"
        return True

    def _close(self, progress: Progress) -> None:
        after = self._text.lstrip(_BLANKS)
        if after.startswith(self._form.closing):
            progress.rest = after[len(self._form.closing) :]
        elif not self._form.closing.startswith(after):
            progress.is_broken, progress.rest = True, after


def _value(bare: str) -> str | None:
    """Return the JSON text of a value without quotes; None: it is none."""
    word = _WORDS.get(bare.lower())
    return word if word is not None else bare if _NUMBER.fullmatch(bare) else None
