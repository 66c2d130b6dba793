"""Calls as the OpenAI API returns them, and the parser that finds them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from openai_gateway.protocol.tools import FunctionCall, Tool, ToolCall
from openai_gateway.tools.events import Call
from openai_gateway.tools.parser import ToolCallParser


def call_id() -> str:
    """Return a new id for a call; tools' answers refer to it."""
    return f"call_{uuid.uuid4().hex[:24]}"


def tool_call(call: Call) -> ToolCall:
    """Return a call with a new id."""
    # Not validated, which would complete the arguments of a call that was cut before they began.
    return ToolCall(id=call_id(), function=FunctionCall.model_construct(name=call.name, arguments=call.arguments))


def parser_for(
    tools: Sequence[Tool], *, is_forced: bool, parser: str = "auto", recovers: bool = False
) -> ToolCallParser | None:
    """Return a parser of streamed calls of `tools`; None when there are none.

    A call that is forced is looked for also where calls stay text otherwise.

    OpenAI's clients decode the arguments of strict tools themselves, and fail where they are unfinished. So such a
    call is reported when it is whole, unless a grammar sees to it that it will be.
    """
    if not tools:
        return None
    strict = [] if is_forced else [tool for tool in tools if tool.function.strict]
    schemas = {tool.function.name: tool.function.full_schema for tool in tools}
    at_once = {tool.function.name for tool in strict}
    return ToolCallParser(
        schemas, at_once, "auto" if is_forced and parser == "none" else parser, recovers=recovers and not is_forced
    )
