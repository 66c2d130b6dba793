"""What a request with tools says to the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmdeploy.templates.notations import GENERIC
from openai_gateway.protocol.tools import Tool

_DEFINITIONS = ("$defs", "definitions")


def tool_inputs(
    usable: Sequence[Tool], forced: Sequence[Tool], given: Mapping[str, Any], *, may_hold_calls: bool = False
) -> dict[str, Any]:
    """Return the fields of `GenerateRequest` that tools decide.

    Parameters
    ----------
    usable : sequence of Tool
        What the model may call.
    forced : sequence of Tool
        Of which it has to call one; none: it decides.
    given : mapping
        The other fields.
    may_hold_calls : bool
        The model writes calls in the generic notation: those of strict tools can be held to their schemas.
    """
    inputs: dict[str, Any] = {}
    if usable:
        inputs["tools"] = [tool.for_template() for tool in usable]
        if given["skip_special_tokens"] is None:  # in two families the marks around calls are special tokens
            inputs["skip_special_tokens"] = False
    if forced:
        inputs["response_format"] = call_format(forced)
    elif may_hold_calls and given.get("response_format") is None and any(tool.function.strict for tool in usable):
        inputs["response_format"] = marked_calls_format(usable)
    return inputs


def marked_calls_format(tools: Sequence[Tool]) -> dict[str, Any]:
    """Return the ``response_format`` of a text whose calls, each behind its mark, are as the schemas of `tools` say.

    The arguments of tools that are not strict are any object.
    """
    calls = [tool if tool.function.strict else _loose(tool) for tool in tools]
    content = {"type": "json_schema", "json_schema": _calls_schema(calls), "max_whitespace_cnt": 1}
    opening, closing = GENERIC.opening + GENERIC.before, GENERIC.after + GENERIC.closing
    tag = {"type": "tag", "begin": opening, "content": content, "end": closing}
    tags = {"type": "triggered_tags", "triggers": [GENERIC.opening], "tags": [tag]}
    return {"type": "structural_tag", "structural_tag": tags}


def _loose(tool: Tool) -> Tool:
    return tool.model_copy(update={"function": tool.function.model_copy(update={"parameters": {"type": "object"}})})


def call_format(tools: Sequence[Tool]) -> dict[str, Any]:
    """Return the ``response_format`` of an answer that is one call of one of `tools`, as its schema says."""
    return {"type": "json_schema", "json_schema": {"name": "tool_call", "schema": _calls_schema(tools)}}


def _calls_schema(tools: Sequence[Tool]) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    calls = [_call_schema(number, tool, definitions) for number, tool in enumerate(tools)]
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if definitions:
        schema = schema | {"$defs": definitions}
    return schema


def _call_schema(number: int, tool: Tool, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one call; what its parameters define moves to `definitions`, where references find it."""
    prefix = f"tool{number}."
    arguments = _renamed(tool.arguments_schema(), prefix)
    for key in _DEFINITIONS:
        definitions |= {prefix + name: schema for name, schema in arguments.pop(key, {}).items()}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.function.name}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _renamed(value: Any, prefix: str) -> Any:
    if isinstance(value, list):
        return [_renamed(item, prefix) for item in value]
    if not isinstance(value, dict):
        return value
    changed = {key: _renamed(item, prefix) for key, item in value.items()}
    reference = changed.get("$ref")
    for key in _DEFINITIONS:
        if isinstance(reference, str) and reference.startswith(f"#/{key}/"):
            changed["$ref"] = f"#/$defs/{prefix}{reference.removeprefix(f'#/{key}/')}"
    return changed
