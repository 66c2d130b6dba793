"""Calls as the OpenAI API returns them."""

from __future__ import annotations

import uuid

from openai_gateway.protocol.tools import FunctionCall, ToolCall
from openai_gateway.tools.events import Call


def call_id() -> str:
    """Return a new id for a call; tools' answers refer to it."""
    return f"call_{uuid.uuid4().hex[:24]}"


def tool_call(call: Call) -> ToolCall:
    """Return a call with a new id."""
    return ToolCall(id=call_id(), function=FunctionCall(name=call.name, arguments=call.arguments))
