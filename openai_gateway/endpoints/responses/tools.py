"""``tools`` of ``POST /v1/responses``: functions and freeform tools, alone or grouped, and those only OpenAI runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from openai_gateway.protocol.fields import AnyText, FieldError, Strict, Text, small
from openai_gateway.protocol.tools import MAX_TOOLS, Function, FunctionName, Tool

INPUT = "input"
"""The parameter of a freeform tool as the model sees it."""


class FunctionTool(Function):
    """A function the model may call."""

    type: Literal["function"]


class TextFormat(Strict):
    """A text of any form."""

    type: Literal["text"]


class GrammarFormat(Strict):
    """Grammar of a custom tool's input."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: Text


class CustomTool(Strict):
    """A freeform tool: its input is a text. The model sees a function of one parameter, that text."""

    type: Literal["custom"]
    name: FunctionName
    description: AnyText | None = None
    format: Annotated[TextFormat | GrammarFormat, Field(discriminator="type")] | None = None

    def as_function(self, name: str) -> Function:
        """Return the function, which is held to a regular expression where grammars can hold it."""
        described, text = self.description or "", {"type": "string"}
        if not isinstance(self.format, GrammarFormat):
            return _of_input(name, described, text)
        described += f"\nThe input must fit this {self.format.syntax} grammar:\n{self.format.definition}"
        if self.format.syntax == "regex":
            schema = text | {"pattern": f"^(?:{self.format.definition})$"}
            with suppress(ValueError):
                return _of_input(name, described, schema, strict=True)
        return _of_input(name, described, text)


def _of_input(name: str, description: str, text: dict[str, Any], *, strict: bool | None = None) -> Function:
    schema = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
    return Function(name=name, description=description.strip(), parameters=schema, strict=strict)


def input_of(arguments: str) -> str:
    """Return the input of a freeform tool that a model called as a function, also where it named it otherwise."""
    try:
        given = json.loads(arguments, strict=False)
    except ValueError:  # cut
        return arguments
    values = list(given.values()) if isinstance(given, dict) else []
    text = given.get(INPUT, values[0]) if values else arguments
    return text if isinstance(text, str) else arguments


class OtherTool(Strict):
    """A tool that the client does not run, such as ``web_search`` or ``mcp``: left out, as nobody here runs it."""

    type: Text
    name: AnyText | None = None
    server_label: AnyText | None = None

    @property
    def shown(self) -> str:
        """Name in the response."""
        name = self.name or self.server_label
        return f"{self.type}: {name}" if name else self.type


def _kind(tool: object) -> str:
    """Return which form of a tool is meant; in capitals, so that errors do not name it as a part of the path."""
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return {"function": "FUNCTION", "custom": "CUSTOM", "namespace": "NAMESPACE"}.get(str(kind), "OTHER")


OneTool = (
    Annotated[FunctionTool, Tag("FUNCTION")] | Annotated[CustomTool, Tag("CUSTOM")] | Annotated[OtherTool, Tag("OTHER")]
)


class NamespaceTool(Strict):
    """A group of tools, which the model sees one by one."""

    type: Literal["namespace"]
    name: FunctionName
    description: AnyText | None = None
    tools: Annotated[list[Annotated[OneTool, Discriminator(_kind)]], Field(max_length=MAX_TOOLS, fail_fast=True)]


ResponsesTools = Annotated[
    list[Annotated[OneTool | Annotated[NamespaceTool, Tag("NAMESPACE")], Discriminator(_kind)]],
    Field(max_length=MAX_TOOLS, fail_fast=True),
    BeforeValidator(small),
]


_NAMED = ("function", "custom")


class NamedChoice(Strict):
    """The tool to call."""

    type: Literal["function", "custom"]
    name: FunctionName


class AllowedTools(Strict):
    """The tools of which the model may call one, or has to."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[OtherTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]

    @model_validator(mode="after")
    def _functions_have_names(self) -> AllowedTools:
        if any(tool.type in _NAMED and not tool.name for tool in self.tools):
            raise FieldError("tools", "tools must have the name of each function")
        return self

    @property
    def names(self) -> frozenset[str]:
        """The functions and freeform tools among them."""
        return frozenset(tool.name for tool in self.tools if tool.type in _NAMED and tool.name)


class OfferedTools:
    """The functions of a request as the model sees them, each with a name that no other has.

    ``tools``: of the request. A function in a group has its own name where no other function has it; else the group's
    name comes before it.
    """

    def __init__(self, tools: Sequence[FunctionTool | CustomTool | NamespaceTool | OtherTool]) -> None:
        found: list[tuple[str | None, FunctionTool | CustomTool]] = []
        self.left_out: list[str] = []  # the tools that the client does not run, as `OtherTool.shown`
        for tool in tools:
            namespace = tool.name if isinstance(tool, NamespaceTool) else None
            for one in tool.tools if isinstance(tool, NamespaceTool) else (tool,):
                if isinstance(one, OtherTool):
                    self.left_out.append(one.shown)
                else:
                    found.append((namespace, one))
        named = Counter(tool.name for _, tool in found)
        self.functions: dict[str, Tool] = {}  # by the names that the model sees
        self.freeform: set[str] = set()  # names in `functions` of tools that take a text
        self._origins: dict[str, tuple[str | None, str]] = {}
        for namespace, tool in found:
            shown = f"{namespace}__{tool.name}" if namespace and named[tool.name] > 1 else tool.name
            if shown in self.functions:
                continue
            if isinstance(tool, CustomTool):
                function = tool.as_function(shown)
                self.freeform.add(shown)
            else:
                function = Function(**tool.model_dump(exclude={"type", "name"}), name=shown)
            self.functions[shown] = Tool(type="function", function=function)
            self._origins[shown] = (namespace, tool.name)

    def origin(self, shown: str) -> dict[str, Any]:
        """Return the name of a function that the model called as the request has it, with its group if it has one."""
        namespace, name = self._origins.get(shown, (None, shown))
        return {"name": name} | ({"namespace": namespace} if namespace else {})

    def shown(self, namespace: str | None, name: str) -> str:
        """Return the name by which the model knows a function, also where it is not offered any more."""
        known = next((shown for shown, origin in self._origins.items() if origin == (namespace, name)), None)
        return known or (f"{namespace}__{name}" if namespace else name)
