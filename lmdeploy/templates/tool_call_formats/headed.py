"""Calls that are the function's name, and then its arguments as JSON; and code."""

from collections.abc import Sequence
from dataclasses import dataclass

from lmdeploy.templates.calls import Call, as_json
from lmdeploy.templates.tool_call_formats.grammar import (
    CallGrammar,
    FunctionSchema,
    Grammar,
    constant,
    json_value,
    sequence,
    tag,
)


@dataclass(frozen=True, slots=True)
class NamedArguments:
    """Each call is the function's name and then its arguments, a JSON object."""

    opening: str  # the tag before the name
    ending: str  # what ends the name
    closing: str = ""  # the tag after the arguments; empty: there is none

    def write(self, calls: Sequence[Call]) -> str:
        functions = [call["function"] for call in calls]
        return "".join(
            f"{self.opening}{made['name']}{self.ending}{_as_text(made['arguments'])}{self.closing}"
            for made in functions
        )

    def grammar(self, functions: Sequence[FunctionSchema]) -> CallGrammar:
        """Return the grammar of calls of `functions`; without a closing tag, the first opening is in the prompt."""
        opening = self.opening if self.closing else ""
        tags = [
            tag(f"{opening}{function.name}{self.ending}", json_value(function.enforced), self.closing)
            for function in functions
        ]
        return CallGrammar(tags, separator="" if self.closing else self.opening, trigger=opening)


@dataclass(frozen=True, slots=True)
class HeadedArguments:
    """Each call is a head that holds the function's name, and then its arguments, a JSON object."""

    head: str  # as written, with ``{name}``, and ``{number}`` or ``{id}`` of the call
    closing: str  # the tag after the arguments as written
    openings: tuple[str, ...]  # the tags that heads begin with
    pattern: str  # regular expression of what is between one of them and the arguments; its group ``name`` is the name
    closings: tuple[str, ...]  # each may end a call
    # Around all calls, and between two, as written
    before: str = ""
    separator: str = ""
    after: str = ""
    other_afters: tuple[str, ...] = ()  # read like `after`
    # As `head` at the beginning of a response, where the prompt ends with a part of it; the call ends the response
    response_head: str = ""

    def write(self, calls: Sequence[Call]) -> str:
        """Return the calls as the model writes them; nothing where there are none."""
        if not calls:
            return ""
        written = (
            self.head.format(name=call["function"]["name"], number=number, id=call.get("id", ""))
            + f"{_as_text(call['function']['arguments'])}{self.closing}"
            for number, call in enumerate(calls)
        )
        return f"{self.before}{self.separator.join(written)}{self.after}"

    def grammar(self, functions: Sequence[FunctionSchema]) -> CallGrammar:
        head = self.response_head or self.head
        tags = [self._tag(head, function) for function in functions]
        trigger = self.before or head.partition("{name}")[0]
        if self.response_head:  # the tag after the arguments is a token that ends the response
            return CallGrammar(tags, trigger=trigger, is_alone=True)
        return CallGrammar(tags, self.before, self.separator, self.after, trigger)

    def _tag(self, head: str, function: FunctionSchema) -> Grammar:
        closing = "" if self.response_head else self.closing
        begin, named, behind = head.replace("{name}", function.name).partition("{")
        arguments = json_value(function.enforced)
        if not named:
            return tag(begin, arguments, closing)
        kind, _, rest = behind.partition("}")
        pattern = {"number": "[0-9]{1,3}", "id": "[A-Za-z0-9]{9}"}[kind]
        return tag(begin, sequence([{"type": "regex", "pattern": pattern}, constant(rest), arguments]), closing)


@dataclass(frozen=True, slots=True)
class EnvironmentCode:
    """Code after the tag, which the environment runs; it is only read."""

    opening: str

    def grammar(self, functions: Sequence[FunctionSchema]) -> CallGrammar:
        """Raise ``ValueError``: no model is held to it."""
        raise ValueError("calls of this kind")


def _as_text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else as_json(arguments)
