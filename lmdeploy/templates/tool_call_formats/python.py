"""Calls that are written in Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

from lmdeploy.json_schema import Syntax
from lmdeploy.json_schema.charsets import complement, of, union
from lmdeploy.json_schema.expressions import class_of
from lmdeploy.json_schema.rules import quoted
from lmdeploy.templates.calls import Call, as_json
from lmdeploy.templates.tool_call_formats.grammar import (
    CallGrammar,
    FunctionSchema,
    Grammar,
    named_members,
    rules_part,
    tag,
)


@dataclass(frozen=True, slots=True)
class PythonList:
    """The calls are a Python list of calls with keywords: ``[add(a=1, b=2), today()]``."""

    # Tags that may be around the list
    opening: str
    closing: str
    is_marked: bool = False  # they are written
    has_json: bool = False  # lists and objects are written in JSON; Python is read all the same

    def write(self, calls: Sequence[Call]) -> str:
        written = f"[{', '.join(_in_python(call['function'], self.has_json) for call in calls)}]"
        return f"{self.opening}{written}{self.closing}" if self.is_marked else written

    def grammar(self, functions: Sequence[FunctionSchema]) -> CallGrammar:
        """Return the grammar of calls of `functions`; see ``python_tag``."""
        opening, closing = (self.opening, self.closing) if self.is_marked else ("", "")
        tags = [python_tag(function) for function in functions]
        return CallGrammar(tags, f"{opening}[", ", ", f"]{closing}", opening)


@dataclass(frozen=True, slots=True)
class PythonLines:
    """The calls are Python calls with keywords, a line each, between two tags."""

    opening: str
    closing: str

    def write(self, calls: Sequence[Call]) -> str:
        return self.opening + "\n".join(_in_python(call["function"]) for call in calls) + self.closing

    def grammar(self, functions: Sequence[FunctionSchema]) -> CallGrammar:
        """Return the grammar of calls of `functions`; see ``python_tag``."""
        tags = [python_tag(function) for function in functions]
        return CallGrammar(tags, self.opening, "\n", self.closing, self.opening)


def python_tag(function: FunctionSchema) -> Grammar:
    """Return the grammar of a call in Python.

    Raises `ValueError` if the schema has a keyword that cannot be held, or a name that Python cannot write; names it.
    """
    rules, shapes = function.rules(_PYTHON)
    names = [name for shape in shapes for name, *_ in shape.members]
    if odd := next((name for name in names if not name.isidentifier() or iskeyword(name)), None):
        raise ValueError(f"the name {odd!r} in the keyword properties")
    members = [named_members(rules, shape, lambda name: quoted(f"{name}="), 'word "="') for shape in shapes]
    return tag(f"{function.name}(", rules_part(rules.grammar(" | ".join(members))), ")")


_PYTHON = Syntax(
    text=repr,
    rules=(
        'string ::= "\'" char* "\'"',
        r"""char ::= [^'\\\u0000-\u001f] | "\\" ['"\\nrt]""",
        "word ::= [a-zA-Z_] [a-zA-Z0-9_]*",
        "name ::= string",
    ),
    quote="'",
    character=class_of,
    characters=complement(union(of("'\\"), ((0, 0x1F),))),
    member=repr,
    comma='", "',
    colon='": "',
    words=("True", "False", "None"),
)


def _in_python(function: dict[str, Any], has_json: bool = False) -> str:
    arguments = (
        f"{name}={as_json(value) if has_json and isinstance(value, (dict, list)) else repr(value)}"
        for name, value in function["arguments"].items()
    )
    return f"{function['name']}({', '.join(arguments)})"
