"""Llama 3.1: ``<|python_tag|>`` with JSON or a built-in tool's call, or ``<function=NAME>{...}</function>``."""

from __future__ import annotations

import ast
import json
import re

from openai_gateway.tools.events import Body, Progress
from openai_gateway.tools.json_call import Balance, JsonCall

_PYTHON_TAG = "<|python_tag|>"
_FUNCTION = "<function="
_FUNCTION_END = "</function>"
_NAME = re.compile(r"([A-Za-z0-9_.-]{1,128})>")
_BUILT_IN = re.compile(r"(\w+)\.call\(.*\)", re.DOTALL)
# What the code interpreter is called by those who offer it as a tool.
_INTERPRETERS = ("code_interpreter", "ipython", "python")


class Llama3:
    """The notation of Llama 3.1.

    Parameters
    ----------
    names : frozenset of str
        The functions the model may call.
    """

    marks = (_PYTHON_TAG, _FUNCTION)

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def body(self, mark: str) -> Body:
        """Return a reader for one call."""
        return _PythonTag(self._names) if mark == _PYTHON_TAG else _FunctionTag()


class _PythonTag:
    """JSON, or code for the environment: a built-in tool's ``NAME.call(KEY=VALUE)``, or anything Python."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._text = ""
        self._json: JsonCall | None = None

    def feed(self, text: str) -> Progress:
        if self._json is not None:
            return self._json.feed(text)
        self._text += text
        if self._text.lstrip().startswith("{"):
            self._json = JsonCall()
            return self._json.feed(self._text)
        return Progress()  # code is complete when the answer is

    def finish(self) -> Progress:
        if self._json is not None:
            return self._json.finish()
        code = self._text.strip()
        call = built_in_call(code)
        if call is None:
            name = next((name for name in _INTERPRETERS if name in self._names), None)
            if name is None or not code:
                return Progress(is_broken=True)
            call = name, {"code": code}
        return Progress(name=call[0], arguments=json.dumps(call[1], ensure_ascii=False), rest="")


class _FunctionTag:
    """``NAME>{...}</function>``."""

    def __init__(self) -> None:
        self._text = ""
        self._begin: int | None = None  # of the arguments
        self._told = 0
        self._balance: Balance | None = None
        self._end: int | None = None

    def feed(self, text: str) -> Progress:
        self._text += text
        progress = Progress()
        if self._begin is None:
            head = _NAME.match(self._text)
            if head is None:
                progress.is_broken = ">" in self._text or len(self._text) > 200
                return progress
            opening = self._text[head.end() :]
            if not opening.strip():
                return progress
            if not opening.lstrip().startswith("{"):
                return Progress(is_broken=True)
            progress.name = head[1]
            self._begin = self._told = len(self._text) - len(opening.lstrip())
            self._balance = Balance(self._begin)
        if self._end is None and self._balance is not None:
            self._end = self._balance.end(self._text)
            told = len(self._text) if self._end is None else self._end
            progress.arguments, self._told = self._text[self._told : told], told
        if self._end is not None:
            self._close(progress)
        return progress

    def finish(self) -> Progress:
        return Progress(is_broken=True) if self._end is None else Progress(rest="")

    def _close(self, progress: Progress) -> None:
        assert self._end is not None
        try:
            json.loads(self._text[self._begin : self._end])
        except (ValueError, RecursionError):
            progress.is_broken = True
            return
        after = self._text[self._end :].lstrip()
        if after.startswith(_FUNCTION_END):
            progress.rest = after[len(_FUNCTION_END) :]
        elif not _FUNCTION_END.startswith(after):
            progress.is_broken = True


def built_in_call(code: str) -> tuple[str, dict[str, object]] | None:
    """Return name and arguments of ``NAME.call(KEY=LITERAL, ...)``; None when the code is anything else."""
    match = _BUILT_IN.fullmatch(code)
    if match is None:
        return None
    try:
        expression = ast.parse(code, mode="eval").body
        assert isinstance(expression, ast.Call)
        if expression.args or any(keyword.arg is None for keyword in expression.keywords):
            return None
        return match[1], {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in expression.keywords}
    except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError):
        return None
