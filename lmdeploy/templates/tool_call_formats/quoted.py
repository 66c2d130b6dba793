"""Calls whose arguments are objects with bare names and their own quotes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmdeploy.templates.calls import Call, as_json
from lmdeploy.templates.tool_call_formats.grammar import CallGrammar, FunctionSchema, Grammar, tag
from lmdeploy.templates.tool_call_formats.schema_rules import SchemaRules, Syntax, until


@dataclass(frozen=True, slots=True)
class QuotedArguments:
    """Each call is ``NAME{key:<quote>text<quote>,other:42,list:[1,{a:true}]}`` between two marks.

    Attributes
    ----------
    opening, closing : str
        The marks.
    quote : str
        Before and after a text; within, nothing is escaped.
    before_name : str
        Before the function's name.
    """

    opening: str
    closing: str
    quote: str
    before_name: str = "call:"

    def write(self, calls: Sequence[Call]) -> str:
        """Return the calls as the model writes them."""
        return "".join(
            f"{self.opening}{self.before_name}{call['function']['name']}"
            f"{self._written(call['function']['arguments'])}{self.closing}"
            for call in calls
        )

    def grammar(self, functions: Sequence[FunctionSchema]) -> CallGrammar:
        """Return the grammar of calls of `functions`.

        Raises
        ------
        ValueError
            A schema has a keyword that cannot be held; names it.
        """
        tags = [
            tag(f"{self.opening}{self.before_name}{function.name}", self._arguments(function), self.closing)
            for function in functions
        ]
        return CallGrammar(tags, trigger=self.opening)

    def _arguments(self, function: FunctionSchema) -> Grammar:
        syntax = Syntax(
            literal=self._written,
            rules=(
                f"string ::= {as_json(self.quote)} rest",
                *until(self.quote),
                f"char ::= [^{self.quote[0]}]",
                "name ::= [a-zA-Z_] [a-zA-Z0-9_]*",
            ),
            quote=self.quote,
            forbidden=self.quote[0],
            member=lambda name: f"{name}:",
            colon=":",
            comma=",",
            words=("true", "false", "null"),
        )
        rules = SchemaRules(syntax, function.enforced)
        members = [rules.members(shape, syntax.member, 'name ":"', is_sorted=True) for shape in function.alternatives]
        return {"type": "grammar", "grammar": rules.grammar(f'"{{" ({" | ".join(members)}) "}}"')}

    def _written(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, dict):
            members = sorted(value.items(), key=lambda member: member[0].lower())  # as Jinja's dictsort
            return "{" + ",".join(f"{key}:{self._written(each)}" for key, each in members) + "}"
        if isinstance(value, (list, tuple)):
            return "[" + ",".join(map(self._written, value)) + "]"
        return as_json(value)
