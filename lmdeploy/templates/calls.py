"""Tools, tool calls and tool results in a conversation: common parts of all formats."""

import json
from typing import Any

from lmdeploy.templates.conversation import Message

Tool = dict[str, Any]
Call = dict[str, Any]


def parsed_arguments(messages: list[Message]) -> list[Message]:
    """Return messages whose calls have their arguments as objects, as templates read them, not as JSON text."""
    return [
        {**message, "tool_calls": [_parsed(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def as_json(value: object, indent: int | None = None) -> str:
    """Return JSON text as the published templates write it: characters beyond ASCII as they are."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def results_as_user_turns(messages: list[Message]) -> list[Message]:
    """Return messages with what tools returned, each between tags, as turns of the user.

    Several results in a row make one turn. Such turns have ``is_response``.
    """
    merged: list[Message] = []
    for message in messages:
        if message["role"] != "tool":
            merged.append(message)
            continue
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        if merged and merged[-1].get("is_response"):
            merged[-1]["content"] += f"\n{text}"
        else:
            merged.append({"role": "user", "content": text, "is_response": True})
    return merged


def _parsed(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call  # the model's own words, which were no JSON
    return {**call, "function": {**function, "arguments": arguments}}
