"""``tools`` and ``tool_choice`` of a request, and the calls of a response."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from lmdeploy.json_schema import SchemaError, grammar_of
from openai_gateway.protocol.fields import AnyText, FieldError, JsonObject, Strict, small

_VALUES = ("const", "default", "enum", "examples")  # which are no schemas
MAX_TOOLS = 128
FunctionName = Annotated[AnyText, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]

# The names Python programmers give JSON schema's types; LMDeploy's documentation uses them.
_TYPE_NAMES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean", "dict": "object"} | {
    "list": "array"
}


def require_enforced(field: str, schema: dict[str, Any]) -> None:
    """Refuse a schema of arguments that is not enforced, in a field of that name.

    Raises `FieldError` if a keyword is not enforced.
    """
    try:
        grammar_of(schema)
    except SchemaError as error:
        raise FieldError(field, f"{field} is refused at #{error.pointer}: {error.reason}") from None


class Function(Strict):
    """A function the model may call."""

    name: FunctionName
    description: AnyText | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _keeps_to_its_schema(self) -> Function:
        if self.strict:
            require_enforced("parameters", self.full_schema)
        return self

    @property
    def full_schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, an object."""
        if not self.parameters:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        schema: dict[str, Any] = _with_json_types(self.parameters)
        return schema | {"type": "object"}


class Tool(Strict):
    """One of ``tools``."""

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """Return the tool as chat templates read it."""
        function: dict[str, Any] = {"name": self.function.name, "description": self.function.description or ""}
        function["parameters"] = self.function.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True), BeforeValidator(small)]


class NamedFunction(Strict):
    """The function of a ``tool_choice``."""

    name: FunctionName


class NamedToolChoice(Strict):
    """A ``tool_choice`` that names the function to call."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Strict):
    """The tools of which the model may call one, or has to."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedToolChoice], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedToolsChoice(Strict):
    """A ``tool_choice`` of some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools

    @property
    def names(self) -> frozenset[str]:
        """Of the tools."""
        return frozenset(tool.function.name for tool in self.allowed_tools.tools)


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | AllowedToolsChoice


def _as_text(arguments: object) -> object:
    """Return the text of arguments that a client kept as an object, or left out because there are none."""
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments or "{}"


# Arguments of a call in a conversation, in any API, as the text or as the object that they are.
ArgumentsText = Annotated[AnyText, BeforeValidator(_as_text), BeforeValidator(small)]
ArgumentsObject = Annotated[JsonObject, BeforeValidator(lambda arguments: {} if arguments is None else arguments)]


class FunctionCall(Strict):
    """The function and arguments of a call."""

    name: AnyText
    arguments: ArgumentsText = "{}"


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
    changed = {key: value if key in _VALUES else _with_json_types(value) for key, value in schema.items()}
    kind = changed.get("type")
    if isinstance(kind, str):
        changed["type"] = _TYPE_NAMES.get(kind, kind)
    return changed
