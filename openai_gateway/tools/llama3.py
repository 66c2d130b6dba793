"""Llama 3.1: ``<|python_tag|>`` with JSON or a built-in tool's call, or ``<function=NAME>{...}</function>``."""

from __future__ import annotations

import ast
import re

from openai_gateway.tools.events import Body, Progress
from openai_gateway.tools.json_call import JsonCall, as_json
from openai_gateway.tools.json_prefix import JsonObjectReader

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
        if (call := built_in_call(code)) is not None:
            return Progress(name=call[0], arguments=call[1], rest="")
        name = next((name for name in _INTERPRETERS if name in self._names), None)
        arguments = as_json({"code": code})
        if name is None or not code or arguments is None:
            return Progress(is_broken=True)
        return Progress(name=name, arguments=arguments, rest="")


class _FunctionTag:
    """``NAME>{...}</function>``."""

    def __init__(self) -> None:
        self._text = ""
        self._arguments: JsonObjectReader | None = None
        self._told = 0  # up to where in the text

    def feed(self, text: str) -> Progress:
        self._text += text
        progress = Progress()
        if self._arguments is None:
            head = _NAME.match(self._text)
            if head is None:
                progress.is_broken = ">" in self._text or len(self._text) > 200
                return progress
            opening = self._text[head.end() :].lstrip()
            if not opening.startswith("{"):
                progress.is_broken = bool(opening)
                return progress
            progress.name = head[1]
            self._told = len(self._text) - len(opening)
            self._arguments = JsonObjectReader(self._told)
        self._arguments.read(self._text)
        progress.arguments = self._text[self._told : self._arguments.position]
        self._told = self._arguments.position
        progress.is_broken = self._arguments.is_broken
        if self._arguments.is_complete:
            after = self._text[self._told :].lstrip()
            if after.startswith(_FUNCTION_END):
                progress.rest = after[len(_FUNCTION_END) :]
            progress.is_broken = progress.rest is None and not _FUNCTION_END.startswith(after)
        return progress

    def finish(self) -> Progress:
        is_complete = self._arguments is not None and self._arguments.is_complete
        return Progress(rest="") if is_complete else Progress(is_broken=True)


def built_in_call(code: str) -> tuple[str, str] | None:
    """Return name and arguments (JSON text) of ``NAME.call(KEY=LITERAL, ...)``; None when the code is anything else."""
    match = _BUILT_IN.fullmatch(code)
    if match is None:
        return None
    try:
        expression = ast.parse(code, mode="eval").body
        assert isinstance(expression, ast.Call)
        if expression.args or any(keyword.arg is None for keyword in expression.keywords):
            return None
        arguments = as_json({str(keyword.arg): ast.literal_eval(keyword.value) for keyword in expression.keywords})
    except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError):
        return None
    return None if arguments is None else (match[1], arguments)
