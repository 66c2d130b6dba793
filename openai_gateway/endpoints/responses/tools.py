"""``tools`` of ``POST /v1/responses``: functions, functions in a group, and what only OpenAI's servers run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from openai_gateway.protocol.fields import AnyText, FieldError, Strict, Text, small
from openai_gateway.protocol.tools import MAX_TOOLS, Function, FunctionName, Tool


class FunctionTool(Function):
    """A function the model may call."""

    type: Literal["function"]


class OtherTool(Strict):
    """A tool that is no function, such as ``web_search``, ``custom`` or ``mcp``: left out, as nobody here runs it."""

    type: Text
    name: AnyText | None = None
    server_label: AnyText | None = None

    @property
    def shown(self) -> str:
        """What the response calls it."""
        name = self.name or self.server_label
        return f"{self.type}: {name}" if name else self.type


def _kind(tool: object) -> str:
    """Return which form of a tool is meant; in capitals, so that errors do not name it as a part of the path."""
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return {"function": "FUNCTION", "namespace": "NAMESPACE"}.get(str(kind), "OTHER")


class NamespaceTool(Strict):
    """A group of functions, which the model sees one by one."""

    type: Literal["namespace"]
    name: FunctionName
    description: AnyText | None = None
    tools: Annotated[
        list[
            Annotated[
                Annotated[FunctionTool, Tag("FUNCTION")] | Annotated[OtherTool, Tag("OTHER")], Discriminator(_kind)
            ]
        ],
        Field(max_length=MAX_TOOLS, fail_fast=True),
    ]


ResponsesTools = Annotated[
    list[
        Annotated[
            Annotated[FunctionTool, Tag("FUNCTION")]
            | Annotated[NamespaceTool, Tag("NAMESPACE")]
            | Annotated[OtherTool, Tag("OTHER")],
            Discriminator(_kind),
        ]
    ],
    Field(max_length=MAX_TOOLS, fail_fast=True),
    BeforeValidator(small),
]


class NamedChoice(Strict):
    """The function to call."""

    type: Literal["function"]
    name: FunctionName


class AllowedTools(Strict):
    """The tools of which the model may call one, or has to."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[OtherTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]

    @model_validator(mode="after")
    def _functions_have_names(self) -> AllowedTools:
        if any(tool.type == "function" and not tool.name for tool in self.tools):
            raise FieldError("tools", "tools must have the name of each function")
        return self

    @property
    def names(self) -> frozenset[str]:
        """The functions among them."""
        return frozenset(tool.name for tool in self.tools if tool.type == "function" and tool.name)


class OfferedTools:
    """The functions of a request as the model sees them, each with a name that no other has.

    Parameters
    ----------
    tools
        Of the request. A function in a group has its own name where no other function has it; else the group's name
        comes before it.

    Attributes
    ----------
    functions
        By the names that the model sees.
    left_out
        The tools that are no functions, as `OtherTool.shown`.
    """

    def __init__(self, tools: Sequence[FunctionTool | NamespaceTool | OtherTool]) -> None:
        found: list[tuple[str | None, FunctionTool]] = []
        self.left_out: list[str] = []
        for tool in tools:
            namespace = tool.name if isinstance(tool, NamespaceTool) else None
            for one in tool.tools if isinstance(tool, NamespaceTool) else (tool,):
                if isinstance(one, FunctionTool):
                    found.append((namespace, one))
                else:
                    self.left_out.append(one.shown)
        named = Counter(tool.name for _, tool in found)
        self.functions: dict[str, Tool] = {}
        self._origins: dict[str, tuple[str | None, str]] = {}
        for namespace, tool in found:
            shown = f"{namespace}__{tool.name}" if namespace and named[tool.name] > 1 else tool.name
            function = Function(**tool.model_dump(exclude={"type", "name"}), name=shown)
            self.functions.setdefault(shown, Tool(type="function", function=function))
            self._origins.setdefault(shown, (namespace, tool.name))

    def origin(self, shown: str) -> dict[str, Any]:
        """Return the name of a function that the model called as the request has it, with its group if it has one."""
        namespace, name = self._origins.get(shown, (None, shown))
        return {"name": name} | ({"namespace": namespace} if namespace else {})

    def shown(self, namespace: str | None, name: str) -> str:
        """Return the name by which the model knows a function, also where it is not offered any more."""
        known = next((shown for shown, origin in self._origins.items() if origin == (namespace, name)), None)
        return known or (f"{namespace}__{name}" if namespace else name)
