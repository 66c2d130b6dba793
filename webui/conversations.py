"""Conversations as a browser keeps them, and as files hold them."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from webui.conversation import Answer, Call, Outcome, Turn
from webui.settings import Settings, settings_of

_LONGEST_TITLE = 60
_MOST_TURNS = 2000


def new_id() -> str:
    """Return an id no other conversation has."""
    return uuid.uuid4().hex


@dataclass
class Conversation:
    """What was said, and with which settings.

    Attributes
    ----------
    id
        Under which the browser keeps it.
    name
        What its reader calls it; empty: as it begins.
    """

    id: str = field(default_factory=new_id)
    name: str = ""
    settings: Settings = field(default_factory=Settings)
    turns: list[Turn] = field(default_factory=list)

    @property
    def title(self) -> str:
        """What it is called in the list."""
        begins = " ".join(self.turns[0].question.split()) if self.turns else "New chat"
        return self.name or (begins if len(begins) <= _LONGEST_TITLE else f"{begins[: _LONGEST_TITLE - 1]}…")

    @property
    def is_running(self) -> bool:
        """Whether its last answer is still to come, or coming."""
        return bool(self.turns) and self.turns[-1].answer.outcome is Outcome.RUNNING

    def to_json(self, *, with_pictures: bool = True) -> dict[str, Any]:
        """Return it as JSON; pictures are names of files of this server."""
        turns = [_told(turn, with_pictures) for turn in self.turns]
        return {
            "id": self.id,
            "title": self.title,
            "name": self.name,
            "settings": self.settings.to_json(),
            "turns": turns,
        }


def conversation_of(told: object, pictures_below: Path | None = None) -> Conversation:
    """Return the conversation that a browser or a file tells; what cannot be is left out.

    Parameters
    ----------
    told
        As of `Conversation.to_json`, of any types.
    pictures_below
        Where pictures may lie: a browser could name any file of this server. None: there are none.
    """
    if not isinstance(told, Mapping):
        return Conversation()
    turns = told.get("turns")
    return Conversation(
        id=_text(told.get("id"))[:64] or new_id(),
        name=_text(told.get("name"))[:_LONGEST_TITLE],
        settings=settings_of(told.get("settings")),
        turns=[
            _turn(each, pictures_below)
            for each in (turns if isinstance(turns, list) else [])[:_MOST_TURNS]
            if isinstance(each, Mapping)
        ],
    )


def imported(text: str) -> Conversation:
    """Return the conversation of a file, under an id of its own; a list of OpenAI messages is one too.

    Raises
    ------
    ValueError
        The file holds none; the text is for the reader of the page.
    """
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("This file is not JSON, as conversations are exported") from None
    messages = told.get("messages") if isinstance(told, Mapping) else told
    conversation = _of_messages(messages) if isinstance(messages, list) else conversation_of(told)
    if not conversation.turns:
        raise ValueError("This file holds no conversation")
    conversation.id = new_id()
    return conversation


def _told(turn: Turn, with_pictures: bool) -> dict[str, Any]:
    answers = [asdict(answer) | {"outcome": answer.outcome.value} for answer in turn.answers]
    for answer in answers:
        del answer["token_ids"]  # they would take as much of the browser's room as the text
    pictures = list(turn.pictures) if with_pictures else []
    return {"question": turn.question, "pictures": pictures, "answers": answers, "shown": turn.shown}


def _turn(told: Mapping[str, Any], pictures_below: Path | None) -> Turn:
    answers, pictures = told.get("answers"), told.get("pictures")
    read = [_answer(each) for each in (answers if isinstance(answers, list) else []) if isinstance(each, Mapping)]
    turn = Turn(
        question=_text(told.get("question")),
        pictures=tuple(
            each for each in (pictures if isinstance(pictures, list) else []) if _may_be_shown(each, pictures_below)
        ),
        answers=read or [Answer(outcome=Outcome.STOPPED)],
    )
    turn.show(int(_number(told.get("shown"))))
    return turn


def _answer(told: Mapping[str, Any]) -> Answer:
    calls = told.get("calls")
    outcomes = {outcome.value: outcome for outcome in Outcome if outcome is not Outcome.RUNNING}
    counts = [told.get(name) for name in ("prompt_count", "cached_count")]
    return Answer(
        text=_text(told.get("text")),
        thoughts=_text(told.get("thoughts")),
        calls=[
            Call(_text(each.get("name")), _text(each.get("arguments")), _text(each.get("id")))
            for each in (calls if isinstance(calls, list) else [])
            if isinstance(each, Mapping)
        ],
        outcome=outcomes.get(_text(told.get("outcome")), Outcome.STOPPED),  # its page was closed
        error=_text(told.get("error")),
        token_count=int(_number(told.get("token_count"))),
        prompt_count=None if counts[0] is None else int(_number(counts[0])),
        cached_count=None if counts[1] is None else int(_number(counts[1])),
        waited=_number(told.get("waited")),
        thought=_number(told.get("thought")),
        decoded=_number(told.get("decoded")),
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
            conversation.turns.append(Turn(text, answers=[Answer(outcome=Outcome.STOPPED)]))
        elif role == "assistant" and conversation.turns:
            thoughts = _text(message.get("reasoning_content"))
            conversation.turns[-1].answers = [Answer(text, thoughts, outcome=Outcome.COMPLETE)]
    return conversation


def _may_be_shown(picture: object, below: Path | None) -> bool:
    """Return whether a picture is one that was uploaded, and still there."""
    if below is None or not isinstance(picture, str) or "\0" in picture:
        return False
    file = Path(picture).resolve()
    return file.is_relative_to(below.resolve()) and file.is_file()


def _text(told: object) -> str:
    return told if isinstance(told, str) else ""


def _number(told: object) -> float:
    """Return a number that is not negative, 0 for anything else."""
    is_number = isinstance(told, int | float) and math.isfinite(told) and 0 <= told < 2**53
    return float(told) if is_number and isinstance(told, int | float) else 0.0
