"""Calls that are JSON objects: between tags, alone, or in a list."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmdeploy.templates.calls import Call, as_json
from lmdeploy.templates.tool_call_formats.grammar import CallGrammar, FunctionSchema, json_object_tag


@dataclass(frozen=True, slots=True)
class MarkedObjects:
    """Each call is a JSON object between two tags."""

    opening: str
    closing: str
    # Separator of the tags and the object as written; any white space is read
    before: str = "\n"
    after: str = "\n"
    separator: str = "\n"  # between two calls as written
    arguments: str = "arguments"  # name of the object's member with the arguments; any of the usual names is read
    other_openings: tuple[str, ...] = ()  # read like `opening`

    def write(self, calls: Sequence[Call]) -> str:
        """Return the calls as the model writes them."""
        objects = (as_json(_named_object(call, self.arguments)) for call in calls)
        return self.separator.join(f"{self.opening}{self.before}{made}{self.after}{self.closing}" for made in objects)

    def grammar(self, functions: Sequence[FunctionSchema]) -> CallGrammar:
        """Return the grammar of calls of `functions`."""
        begin, end = self.opening + self.before, self.after + self.closing
        tags = [json_object_tag(begin, function, "name", self.arguments, end) for function in functions]
        return CallGrammar(tags, separator=self.separator, trigger=self.opening)


@dataclass(frozen=True, slots=True)
class BareObjects:
    """Each call is a JSON object without tags."""

    separator: str = "; "  # between two calls
    arguments: str = "parameters"  # name of the object's member with the arguments as written

    def write(self, calls: Sequence[Call]) -> str:
        return self.separator.join(as_json(_named_object(call, self.arguments)) for call in calls)

    def grammar(self, functions: Sequence[FunctionSchema]) -> CallGrammar:
        tags = [json_object_tag("", function, "name", self.arguments, "") for function in functions]
        return CallGrammar(tags, separator=self.separator, trigger='{"name": "')


@dataclass(frozen=True, slots=True)
class ObjectList:
    """The calls are a JSON list after a tag."""

    opening: str  # the tag
    closing: str = ""  # after the list; empty: nothing
    # Names of an object's members with the function, its arguments and the call's id, as written; empty: calls have no
    # ids. Any of the usual names is read
    name: str = "name"
    arguments: str = "arguments"
    identity: str = ""
    indent: int | None = None  # of the list as written
    other_openings: tuple[str, ...] = ()  # read like `opening`
    is_bare: bool = False  # the list is written without tags, and read where a response begins with it

    def write(self, calls: Sequence[Call], gap: str = "") -> str:
        """Return the calls as the model writes them, with `gap` after the tag."""
        if self.is_bare:
            return as_json([self._object(call) for call in calls], self.indent)
        return f"{self.opening}{gap}{as_json([self._object(call) for call in calls], self.indent)}{self.closing}"

    def grammar(self, functions: Sequence[FunctionSchema]) -> CallGrammar:
        tags = [json_object_tag("", function, self.name, self.arguments, "") for function in functions]
        if self.is_bare:
            return CallGrammar(tags, "[", ", ", "]")
        return CallGrammar(tags, f"{self.opening}[", ", ", f"]{self.closing}", trigger=self.opening)

    def _object(self, call: Call) -> dict[str, Any]:
        made = _named_object(call, self.arguments, self.name)
        return made | {self.identity: call.get("id", "")} if self.identity else made


def _named_object(call: Call, arguments: str, name: str = "name") -> dict[str, Any]:
    return {name: call["function"]["name"], arguments: call["function"]["arguments"]}
