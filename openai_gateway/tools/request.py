"""What a request with tools says to the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lmdeploy.templates.thinking import Thinking
from lmdeploy.templates.tool_call_formats import GENERIC, ToolCallFormat
from lmdeploy.templates.tool_call_formats.grammar import CallGrammar, FunctionSchema
from openai_gateway.errors import ApiError
from openai_gateway.protocol.tools import Tool
from openai_gateway.reasoning_grammar import or_calls


def tool_inputs(
    usable: Sequence[Tool],
    forced: Sequence[Tool],
    given: Mapping[str, Any],
    form: ToolCallFormat | None = None,
    *,
    several: bool = True,
    thinking: Thinking | None = None,
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
    form : ToolCallFormat, optional
        How the model writes calls: those that are forced, and those of strict tools, are held to their schemas in it.
        None: it is not known; forced calls are written as most models know it, others as they come.
    several : bool
        Whether the model may call more than once.
    thinking : Thinking, optional
        How the model writes its reasoning.

    Raises
    ------
    ApiError
        A schema has a keyword that no grammar of the format can hold.
    """
    inputs: dict[str, Any] = {}
    if usable:
        inputs["tools"] = [tool.for_template() for tool in usable]
        if given["skip_special_tokens"] is None:  # in many families the marks around calls are special tokens
            inputs["skip_special_tokens"] = False
    grammar = None
    if forced:
        grammar = _grammar_of(form or GENERIC, forced).calls(several=several)
    elif form and usable and (wanted := given.get("response_format")) is not None:
        calls = _grammar_of(form, _loosened(usable)).calls(several=several)
        if held := or_calls(wanted, calls, thinking.marks if thinking else None):
            inputs["response_format"] = held
    elif form and any(tool.function.strict for tool in usable):
        grammar = _grammar_of(form, _loosened(usable)).text(several=several)
    if grammar is not None:
        inputs["response_format"] = {"type": "structural_tag", "structural_tag": grammar}
    return inputs


def _grammar_of(form: ToolCallFormat, tools: Sequence[Tool]) -> CallGrammar:
    grammars = []
    for tool in tools:
        try:
            function = tool.function
            schema = FunctionSchema(function.name, function.full_schema, is_strict=bool(function.strict))
            grammars.append(form.grammar([schema]))
        except ValueError as error:
            message = f"a call of {tool.function.name} cannot be held to its schema: no grammar has {error}"
            raise ApiError(400, message, param="tools", code="invalid_function_parameters") from None
    return replace(grammars[0], tags=[tag for grammar in grammars for tag in grammar.tags])


def _loosened(tools: Sequence[Tool]) -> list[Tool]:
    """Return the tools, of which only the strict ones have schemas."""
    return [tool if tool.function.strict else _loose(tool) for tool in tools]


def _loose(tool: Tool) -> Tool:
    return tool.model_copy(update={"function": tool.function.model_copy(update={"parameters": {"type": "object"}})})
