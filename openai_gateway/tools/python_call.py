"""Reader of tool calls in Python, ``add(a=1, b=[2, "x"])``, and of Llama 3.1's code for its environment."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from typing import Any

from openai_gateway.tools.events import Progress, may_begin_name
from openai_gateway.tools.json_call import as_json

_NAME = re.compile(r"\s*([A-Za-z0-9_.-]{1,128})\s*\(")
_BUILT_IN = re.compile(r"(\w+)\.call\(.*\)", re.DOTALL)
# Names of the code interpreter where it is offered as a tool.
_INTERPRETERS = ("code_interpreter", "ipython", "python")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
# JSON's words, which models write whose tools are described in JSON.
_WORDS = {"true": True, "false": False, "null": None}


class PythonCall:
    """Reads a call up to its last bracket. Each argument comes when it is whole: before, it is no JSON."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names  # the functions it may be; others are no call
        self._text = ""
        self._name: str | None = None
        self._begin = self._position = 0  # of the argument being read; up to where it was read
        self._due = [")"]  # closing brackets
        self._quote = ""  # that ends the string being read
        self._arguments = 0  # reported

    def feed(self, text: str) -> Progress:
        self._text += text
        progress = Progress()
        if self._name is None and (head := _NAME.match(self._text)):
            self._name, self._position = head[1], head.end()
            self._begin = self._position
            if self._name in self._names:
                progress.name = self._name
        if self._name is None:
            beginning = self._text.strip()
            return Progress(is_broken=not may_begin_name(beginning, self._names))
        progress.is_broken = self._name not in self._names or not self._read(progress)
        if progress.is_broken or not self._due:
            progress.rest = self._text[self._position :]
        return progress

    def finish(self) -> Progress:
        """The response is over before the call is."""
        return Progress(is_broken=True, rest="")

    def _read(self, progress: Progress) -> bool:
        """Read on, to the last bracket if it is there; return whether it is a call so far."""
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
            if self._quote == "" and (not self._due or (char == "," and len(self._due) == 1)):
                if not self._take_argument(progress):
                    return False
                self._begin = self._position + 1
            self._position += 1
        return True

    def _take_argument(self, progress: Progress) -> bool:
        """Report an argument, which ends here; return whether it is one."""
        code = self._text[self._begin : self._position].strip()
        if not code and not self._due:
            progress.arguments += "}" if self._arguments else "{}"
            return True
        argument = keyword_argument(code)
        if argument is None:
            return False
        progress.arguments += f"{', ' if self._arguments else '{'}{argument}{'' if self._due else '}'}"
        self._arguments += 1
        return True


class EnvironmentCall:
    """Reads code for Llama's environment: a built-in tool's ``NAME.call(KEY=VALUE)``, or anything Python."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names  # the functions the model may call
        self._text = ""

    def feed(self, text: str) -> Progress:
        """Take more text; the code is complete when the response is. It never begins as JSON does."""
        self._text += text
        return Progress(is_broken=self._text.lstrip().startswith("{"))

    def finish(self) -> Progress:
        """The response is over, and with it the code."""
        code = self._text.strip()
        built_in = _BUILT_IN.fullmatch(code)
        arguments = keyword_arguments(code) if built_in and built_in[1] in self._names else None
        if built_in and arguments is not None:
            return Progress(name=built_in[1], arguments=arguments, rest="")
        name = next((name for name in _INTERPRETERS if name in self._names), None)
        arguments = as_json({"code": code})
        if name is None or not code or arguments is None:
            return Progress(is_broken=True)
        return Progress(name=name, arguments=arguments, rest="")


def keyword_argument(code: str) -> str | None:
    """Return ``"name": value`` as JSON of one keyword with a literal; None when the code is anything else."""
    arguments = keyword_arguments(f"f({_with_escaped_lines(code)})")
    return arguments[1:-1] if arguments is not None and len(arguments) > 2 else None


def keyword_arguments(code: str) -> str | None:
    """Return the arguments (JSON text) of a call with literals for keywords; None when the code is anything else."""
    try:
        call = ast.parse(code, mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
            return None
        return as_json({str(keyword.arg): ast.literal_eval(_Words().visit(keyword.value)) for keyword in call.keywords})
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        return None


class _Words(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> Any:
        return ast.copy_location(ast.Constant(_WORDS[node.id]), node) if node.id in _WORDS else node


def _with_escaped_lines(code: str) -> str:
    """Return code in which line ends within quotes are escaped; models write them as they are."""
    if "\n" not in code and "\r" not in code:
        return code
    written, quote, escaped = "", "", False
    for char in code:
        if quote and char in "\r\n" and not escaped:
            written += "\\n" if char == "\n" else "\\r"
            continue
        if escaped:
            escaped = False
        elif quote:
            escaped = char == "\\"
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        written += char
    return written
