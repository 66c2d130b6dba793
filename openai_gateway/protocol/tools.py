"""``tools`` and ``tool_choice`` of a request, and the calls of an answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from openai_gateway.protocol.fields import AnyText, JsonObject, Strict, small

MAX_TOOLS = 128
FunctionName = Annotated[AnyText, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]

# The names Python programmers give JSON schema's types; LMDeploy's documentation uses them.
_TYPE_NAMES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean", "dict": "object"} | {
    "list": "array"
}


class Function(Strict):
    """A function the model may call."""

    name: FunctionName
    description: AnyText | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(Strict):
    """One of ``tools``."""

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """Return the tool as chat templates read it."""
        function: dict[str, Any] = {"name": self.function.name, "description": self.function.description or ""}
        function["parameters"] = self.function.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}

    def arguments_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the function's arguments."""
        schema: dict[str, Any] = _with_json_types(self.function.parameters or {"properties": {}})
        return schema | {"type": "object"}


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True), BeforeValidator(small)]


class NamedFunction(Strict):
    """The function of a ``tool_choice``."""

    name: FunctionName


class NamedToolChoice(Strict):
    """A ``tool_choice`` that names the function to call."""

    type: Literal["function"]
    function: NamedFunction


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice


class FunctionCall(Strict):
    """The function and arguments of a call."""

    name: AnyText
    arguments: AnyText


class ToolCall(Strict):
    """One call of a function."""

    id: AnyText
    type: Literal["function"] = "function"
    function: FunctionCall


def _with_json_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_with_json_types(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _with_json_types(value) for key, value in schema.items()}
    kind = changed.get("type")
    if isinstance(kind, str):
        changed["type"] = _TYPE_NAMES.get(kind, kind)
    return changed
