"""Export of conversations to files."""

from __future__ import annotations

import json
import re

from webui.conversation import Turn
from webui.conversations import Conversation


def as_json(conversation: Conversation) -> str:
    """Return a file that `webui.conversations.imported` reads; images are left out."""
    return json.dumps(conversation.to_json(with_images=False), ensure_ascii=False, indent=2) + "\n"


def as_markdown(conversation: Conversation) -> str:
    """Return a document to read: the shown responses, reasoning as quotations."""
    parts = [f"# {conversation.title}"]
    if prompt := conversation.settings.system_prompt.strip():
        parts.append(f"> System prompt: {_quoted(prompt)}")
    for turn in conversation.turns:
        parts += _turn(turn)
    return "\n\n".join(parts) + "\n"


def file_name(conversation: Conversation, ending: str) -> str:
    """Return a file name for a conversation, safe on every system."""
    words = re.sub(r"[^\w]+", "-", conversation.title).strip("-_")[:50]
    return f"{words or 'conversation'}.{ending}"


def _turn(turn: Turn) -> list[str]:
    images = len(turn.images)
    shown = [f"*{images} image{'' if images == 1 else 's'}*"] if images else []
    parts = ["## You", *shown, turn.question, "## Model"]
    response = turn.response
    if response.reasoning.strip():
        parts.append(f"> {_quoted(response.reasoning.strip())}")
    parts += [response.text.strip()] if response.text.strip() else []
    parts += [f"Calls `{call.name}`:\n\n```json\n{call.arguments}\n```" for call in response.calls]
    parts += [f"*{response.error}*"] if response.error else []
    return parts


def _quoted(text: str) -> str:
    return text.replace("\n", "\n> ")
