"""Stored form of conversations, in browsers and files."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from openai_gateway.errors import ApiError
from openai_gateway.parsing import check_size
from webui import uploads
from webui.conversation import MAX_IMAGES, Call, Outcome, Response, Turn
from webui.settings import Settings, settings_of

MAX_TITLE = 60
MAX_TURNS = 2000


def new_id() -> str:
    """Return an id no other conversation has."""
    return uuid.uuid4().hex


@dataclass
class Conversation:
    """A conversation with its settings."""

    id: str = field(default_factory=new_id)  # under which the browser keeps it
    name: str = ""  # what its reader calls it; empty: as it begins
    settings: Settings = field(default_factory=Settings)
    turns: list[Turn] = field(default_factory=list)

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


def conversation_of(reported: object, images_below: Path | None = None) -> Conversation:
    """Return the conversation that a browser or a file reports; what cannot be is left out.

    ``reported``: as of `Conversation.to_json`, of any types. ``images_below``: where images may be: a browser could
    name any file of this server. None: there are none.
    """
    if not isinstance(reported, Mapping):
        return Conversation()
    turns = reported.get("turns")
    return Conversation(
        id=_text(reported.get("id"))[:64] or new_id(),
        name=_text(reported.get("name"))[:MAX_TITLE],
        settings=settings_of(reported.get("settings")),
        turns=[
            _turn(turn, images_below)
            for turn in (turns if isinstance(turns, list) else [])[:MAX_TURNS]
            if isinstance(turn, Mapping)
        ],
    )


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


def _turn(reported: Mapping[str, Any], images_below: Path | None) -> Turn:
    responses, images = reported.get("responses"), reported.get("images")
    read = [_response(item) for item in (responses if isinstance(responses, list) else []) if isinstance(item, Mapping)]
    turn = Turn(
        question=_text(reported.get("question")),
        images=tuple(
            image
            for image in (images if isinstance(images, list) else [])[:MAX_IMAGES]
            if images_below is not None and uploads.find(image, images_below)
        ),
        responses=read or [Response(outcome=Outcome.STOPPED)],
    )
    turn.show(int(_number(reported.get("shown"))))
    return turn


def _response(reported: Mapping[str, Any]) -> Response:
    calls = reported.get("calls")
    outcomes = {outcome.value: outcome for outcome in Outcome if outcome is not Outcome.RUNNING}
    return Response(
        text=_text(reported.get("text")),
        reasoning=_text(reported.get("reasoning")),
        calls=[
            Call(_text(call.get("name")), _text(call.get("arguments")), _text(call.get("id")))
            for call in (calls if isinstance(calls, list) else [])
            if isinstance(call, Mapping)
        ],
        outcome=outcomes.get(_text(reported.get("outcome")), Outcome.STOPPED),  # its page was closed
        error=_text(reported.get("error")),
        token_count=int(_number(reported.get("token_count"))),
        prompt_count=_count(reported.get("prompt_count")),
        cached_count=_count(reported.get("cached_count")),
        waited=_number(reported.get("waited")),
        thought=_number(reported.get("thought")),
        decoded=_number(reported.get("decoded")),
        context_len=_count(reported.get("context_len")),
    )


def _of_messages(messages: list[Any]) -> Conversation:
    """Return OpenAI's messages as a conversation."""
    conversation = Conversation()
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        text = "\n".join(_text(part.get("text")) for part in parts if isinstance(part, Mapping))
        role = message.get("role")
        if role in ("system", "developer"):
            conversation.settings = Settings(system_prompt=text)
        elif role == "user":
            conversation.turns.append(Turn(text, responses=[Response(outcome=Outcome.STOPPED)]))
        elif role == "assistant" and conversation.turns:
            reasoning = _text(message.get("reasoning_content"))
            conversation.turns[-1].responses = [Response(text, reasoning, outcome=Outcome.COMPLETE)]
    return conversation


def _text(reported: object) -> str:
    return reported if isinstance(reported, str) else ""


def _number(reported: object) -> float:
    """Return a number that is not negative, 0 for anything else."""
    return float(reported) if isinstance(reported, int | float) and 0 <= reported < 2**53 else 0.0


def _count(reported: object) -> int | None:
    return None if reported is None else int(_number(reported))
