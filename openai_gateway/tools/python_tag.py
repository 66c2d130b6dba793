"""What Llama 3.1 writes for its environment to run: JSON, or a built-in tool's call, or code."""

from __future__ import annotations

import re

from openai_gateway.tools.events import Progress
from openai_gateway.tools.json_call import JsonCall, as_json
from openai_gateway.tools.python_call import keyword_arguments

_BUILT_IN = re.compile(r"(\w+)\.call\(.*\)", re.DOTALL)
# What the code interpreter is called by those who offer it as a tool.
_INTERPRETERS = ("code_interpreter", "ipython", "python")


class PythonTag:
    """Reads JSON, or code for the environment: a built-in tool's ``NAME.call(KEY=VALUE)``, or anything Python.

    Parameters
    ----------
    names : frozenset of str
        The functions the model may call.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._text = ""
        self._json: JsonCall | None = None

    def feed(self, text: str) -> Progress:
        """Take more text."""
        if self._json is not None:
            return self._json.feed(text)
        self._text += text
        if self._text.lstrip().startswith("{"):
            self._json = JsonCall(self._names)
            return self._json.feed(self._text)
        return Progress()  # code is complete when the response is

    def finish(self) -> Progress:
        """The response is over, and with it the code."""
        if self._json is not None:
            return self._json.finish()
        code = self._text.strip()
        if (call := built_in_call(code)) is not None and call[0] in self._names:
            return Progress(name=call[0], arguments=call[1], rest="")
        name = next((name for name in _INTERPRETERS if name in self._names), None)
        arguments = as_json({"code": code})
        if name is None or not code or arguments is None:
            return Progress(is_broken=True)
        return Progress(name=name, arguments=arguments, rest="")


def built_in_call(code: str) -> tuple[str, str] | None:
    """Return name and arguments (JSON text) of ``NAME.call(KEY=LITERAL, ...)``; None when the code is anything else."""
    match = _BUILT_IN.fullmatch(code)
    arguments = None if match is None else keyword_arguments(code)
    return None if match is None or arguments is None else (match[1], arguments)
