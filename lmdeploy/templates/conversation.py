"""Strict reader of a conversation in OpenAI's message format."""

import json
from collections.abc import Mapping
from typing import Any

Message = dict[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool", "ipython", "environment")
_SAME_AS = {"developer": "system", "ipython": "tool"}  # as OpenAI, and as Llama 3.1, call what templates know
_RESULTS = ("tool", "ipython", "environment")


class Parts(list[dict[str, str]]):
    """A content that was read already: ``{"type": "text", "text": ...}`` and ``{"type": "image"}``, for templates."""


def read_messages(messages: object) -> list[Message]:
    """Return the conversation with plain text contents; ``developer`` becomes ``system``, ``ipython`` ``tool``.

    Raises `ValueError` if it is anything else; says where and what was expected. ``messages``: a list of objects with
    ``role`` and ``content``: a string, or a list of ``{"type": "text", "text": ...}`` parts, which are joined by
    newlines. An assistant message with ``tool_calls`` needs no content; a tool's may be an object. Other keys are kept.
    """
    if not isinstance(messages, list):
        raise ValueError(f"messages must be a list, got {type(messages).__name__}")
    if not messages:
        raise ValueError("messages must hold at least one message, got an empty list")
    return [_read_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


def rounds_of(messages: list[Message]) -> int:
    """Return how often the user speaks in a conversation."""
    return sum(message["role"] == "user" for message in messages)


def read_tools(tools: object) -> list[dict[str, Any]] | None:
    """Return OpenAI tool descriptions; None if there are none.

    Raises `ValueError` if it is anything else; says where and what was expected. ``tools``: a list of ``{"type":
    "function", "function": {"name": ..., ...}}``, or of what such a ``function`` is; or None.
    """
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise ValueError(f"tools must be a list, got {type(tools).__name__}")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise ValueError(f"tools[{i}] must be an object with type and function, got {type(tool).__name__}")
        _read_function(f"tools[{i}].function", tool.get("function", tool))
    return tools or None


def _read_function(where: str, function: object) -> None:
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where} must be an object with a name, got {function!r:.80}")


def _read_calls(where: str, calls: object) -> None:
    if calls is None:
        return
    if not isinstance(calls, list):
        raise ValueError(f"{where} must be a list, got {type(calls).__name__}")
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else call
        _read_function(f"{where}[{i}].function", function)
        assert isinstance(function, Mapping)
        if "arguments" not in function:
            raise ValueError(f"{where}[{i}].function.arguments is missing")


def _read_message(where: str, message: object) -> Message:
    if not isinstance(message, Mapping):
        raise ValueError(f"{where} must be an object with role and content, got {type(message).__name__}")
    role = message.get("role")
    if role not in ROLES:
        raise ValueError(f"{where}.role must be one of {', '.join(ROLES)}, got {role!r}")
    _read_calls(f"{where}.tool_calls", message.get("tool_calls"))
    content = message.get("content")
    if content is None and role == "assistant" and message.get("tool_calls"):
        content = ""
    elif isinstance(content, Mapping) and role in _RESULTS:
        content = json.dumps(content, ensure_ascii=False)
    read = {"role": _SAME_AS.get(role, role), "content": _read_content(f"{where}.content", content)}
    return {**message, **read}


def _read_content(where: str, content: object) -> str | Parts:
    if isinstance(content, (str, Parts)):
        return content
    if content is None:
        raise ValueError(f"{where} is missing")
    if not isinstance(content, list):
        raise ValueError(f"{where} must be a string or a list of parts, got {type(content).__name__}")
    if not content:
        raise ValueError(f"{where} must be a string or a list of parts, got an empty list")
    return "\n".join(_read_part(f"{where}[{i}]", part) for i, part in enumerate(content))


def _read_part(where: str, part: object) -> str:
    if not isinstance(part, Mapping):
        raise ValueError(f"{where} must be an object with type and text, got {type(part).__name__}")
    if part.get("type") != "text":
        raise ValueError(f"{where}.type {part.get('type')!r} is not supported: this model reads text only")
    text = part.get("text")
    if not isinstance(text, str):
        raise ValueError(f"{where}.text must be a string, got {type(text).__name__}")
    return text
