"""Reading a conversation in OpenAI's message format, strictly: whatever is wrong is named."""

from collections.abc import Mapping
from typing import Any

Message = dict[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")


def read_messages(messages: object) -> list[Message]:
    """Return the conversation with plain text contents; ``developer`` becomes ``system``.

    Parameters
    ----------
    messages
        A list of objects with ``role`` and ``content``: a string, or a list of ``{"type": "text", "text": ...}`` parts,
        which are joined by newlines. An assistant message with ``tool_calls`` needs no content. Other keys are kept.

    Raises
    ------
    ValueError
        If it is anything else; says where and what was expected.
    """
    if not isinstance(messages, list):
        raise ValueError(f"messages must be a list, got {type(messages).__name__}")
    if not messages:
        raise ValueError("messages must hold at least one message, got an empty list")
    return [_read_message(f"messages[{i}]", message) for i, message in enumerate(messages)]


def _read_message(where: str, message: object) -> Message:
    if not isinstance(message, Mapping):
        raise ValueError(f"{where} must be an object with role and content, got {type(message).__name__}")
    role = message.get("role")
    if role not in ROLES:
        raise ValueError(f"{where}.role must be one of {', '.join(ROLES)}, got {role!r}")
    content = message.get("content")
    if content is None and role == "assistant" and message.get("tool_calls"):
        content = ""
    plain = {"role": "system" if role == "developer" else role, "content": _read_content(f"{where}.content", content)}
    return {**message, **plain}


def _read_content(where: str, content: object) -> str:
    if isinstance(content, str):
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
