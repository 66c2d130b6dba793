"""Calls whose arguments are objects with bare names and their own quotes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmdeploy.json_schema import Syntax
from lmdeploy.json_schema.charsets import complement, of
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
class QuotedArguments:
    """Each call is ``NAME{key:<quote>text<quote>,other:42,list:[1,{a:true}]}`` between two tags."""

    opening: str
    closing: str
    quote: str  # before and after a text; within, nothing is escaped
    before_name: str = "call:"  # before the function's name

    def write(self, calls: Sequence[Call]) -> str:
        return "".join(
            f"{self.opening}{self.before_name}{call['function']['name']}"
            f"{self._written(call['function']['arguments'])}{self.closing}"
            for call in calls
        )

    def grammar(self, functions: Sequence[FunctionSchema]) -> CallGrammar:
        """Return the grammar of calls of `functions`.

        Raises `ValueError` if a schema has a keyword that cannot be held; names it.
        """
        tags = [
            tag(f"{self.opening}{self.before_name}{function.name}", self._arguments(function), self.closing)
            for function in functions
        ]
        return CallGrammar(tags, trigger=self.opening)

    def _arguments(self, function: FunctionSchema) -> Grammar:
        syntax = Syntax(
            text=self._written,
            rules=(f"string ::= {quoted(self.quote)} rest", *_until(self.quote), "name ::= [a-zA-Z_] [a-zA-Z0-9_]*"),
            quote=self.quote,
            character=class_of,
            characters=complement(of(self.quote[0])),
            member=str,
            comma='","',
            colon='":"',
            is_sorted=True,
        )
        rules, shapes = function.rules(syntax)
        members = [named_members(rules, shape) for shape in shapes]
        return rules_part(rules.grammar(f'"{{" ({" | ".join(members)}) "}}"'))

    def _written(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, dict):
            members = sorted(value.items(), key=lambda member: member[0].lower())  # as Jinja's dictsort
            return "{" + ",".join(f"{key}:{self._written(item)}" for key, item in members) + "}"
        if isinstance(value, (list, tuple)):
            return "[" + ",".join(map(self._written, value)) + "]"
        return as_json(value)


def _until(delimiter: str) -> Sequence[str]:
    """Return the rules of ``rest``: any text up to a tag, and the tag. ``restN`` continues after N characters."""
    rules = []
    for size, char in enumerate(delimiter):
        then = [f"{quoted(char)} rest{size + 1}" if size + 1 < len(delimiter) else quoted(char)]
        seen = [char]
        for again in range(size, 0, -1):  # what begins the tag again
            if delimiter[again - 1] not in seen and delimiter[:size].endswith(delimiter[: again - 1]):
                then.append(f"{quoted(delimiter[again - 1])} rest{again}")
                seen.append(delimiter[again - 1])
        excluded = "".join(f"\\{item}" if item in "]\\^-" else item for item in seen)
        rules.append(f"rest{size or ''} ::= {' | '.join(then)} | [^{excluded}] rest")
    return rules
