"""Stored form of conversations, in browsers and files."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter

from openai_gateway.errors import ApiError
from openai_gateway.parsing import check_size
from webui import uploads
from webui.conversation import MAX_IMAGES, MAX_OBJECTS, Objects, Outcome, Response, Text, Turn
from webui.settings import Settings, settings_of

MAX_TITLE = 60
MAX_TURNS = MAX_OBJECTS


def new_id() -> str:
    """Return an id no other conversation has."""
    return uuid.uuid4().hex


@dataclass
class Conversation:
    """A conversation with its settings."""

    id: Text = field(default_factory=new_id)  # under which the browser keeps it
    name: Text = ""  # what its reader calls it; empty: as it begins
    settings: Annotated[Settings, BeforeValidator(settings_of)] = field(default_factory=Settings)
    turns: Objects[Turn] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Title in the list."""
        begins = " ".join(self.turns[0].question.split()) if self.turns else "New chat"
        return self.name or (begins if len(begins) <= MAX_TITLE else f"{begins[: MAX_TITLE - 1]}…")

    @property
    def length(self) -> int:
        """Characters of all that was said."""
        return sum(turn.length for turn in self.turns)

    @property
    def is_running(self) -> bool:
        """Whether its last response is still to come, or coming."""
        return bool(self.turns) and self.turns[-1].response.outcome is Outcome.RUNNING

    def to_json(self, *, with_images: bool = True) -> dict[str, Any]:
        """Return it as JSON; images are names of files of this server."""
        turns = [_reported(turn, with_images) for turn in self.turns]
        return {
            "id": self.id,
            "title": self.title,
            "name": self.name,
            "settings": self.settings.to_json(),
            "turns": turns,
        }


_STORED = TypeAdapter(Conversation)


def conversation_of(reported: object, images_below: Path | None = None) -> Conversation:
    """Return the conversation that a browser or a file reports; what cannot be is left out.

    ``reported``: as of `Conversation.to_json`, of any types. ``images_below``: where images may be: a browser could
    name any file of this server. None: there are none.
    """
    conversation = _STORED.validate_python(reported if isinstance(reported, Mapping) else {})
    conversation.id, conversation.name = conversation.id[:64] or new_id(), conversation.name[:MAX_TITLE]
    for turn in conversation.turns:
        images = turn.images[:MAX_IMAGES] if images_below else ()
        turn.images = tuple(image for image in images if uploads.find(image, images_below))
        turn.responses = turn.responses or [Response()]
        turn.show(0)
        for response in turn.responses:
            response.token_ids = []
            if response.outcome is Outcome.RUNNING:  # its page was closed
                response.outcome = Outcome.STOPPED
    return conversation


def imported(text: str) -> Conversation:
    """Return the conversation of a file, under its own id; a list of OpenAI messages is one too.

    Raises `ValueError` if the file holds none; the text is for the reader of the page.
    """
    try:
        check_size(text.encode())
        reported = json.loads(text)
    except ApiError:
        raise ValueError("This file holds too much for a conversation") from None
    except (ValueError, RecursionError):
        raise ValueError("This file is not JSON, as conversations are exported") from None
    messages = reported.get("messages") if isinstance(reported, Mapping) else reported
    conversation = _of_messages(messages) if isinstance(messages, list) else conversation_of(reported)
    if not conversation.turns:
        raise ValueError("This file holds no conversation")
    conversation.id = new_id()
    return conversation


def _reported(turn: Turn, with_images: bool) -> dict[str, Any]:
    responses = [asdict(response) | {"outcome": response.outcome.value} for response in turn.responses]
    for response in responses:
        del response["token_ids"]  # they would take as much of the browser's room as the text
    images = list(turn.images) if with_images else []
    return {"question": turn.question, "images": images, "responses": responses, "shown": turn.shown}


def _of_messages(messages: list[Any]) -> Conversation:
    """Return OpenAI's messages as a conversation."""
    conversation = Conversation()
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        text = "\n".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))
        role = message.get("role")
        if role in ("system", "developer"):
            conversation.settings = Settings(system_prompt=text)
        elif role == "user":
            conversation.turns.append(Turn(text, responses=[Response(outcome=Outcome.STOPPED)]))
        elif role == "assistant" and conversation.turns:
            reasoning = str(message.get("reasoning_content") or "")
            conversation.turns[-1].responses = [Response(text, reasoning, outcome=Outcome.COMPLETE)]
    return conversation
