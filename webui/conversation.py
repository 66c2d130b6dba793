"""Conversation of one browser, independent of the page and the servers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, WrapValidator


class Outcome(Enum):
    """How far a response is."""

    RUNNING = "running"
    COMPLETE = "complete"
    LENGTH = "length"
    STOPPED = "stopped"
    FAILED = "failed"


MAX_IMAGES = 16  # of a question
MAX_IMAGE_BYTES = 32 * 2**20  # of a conversation
MAX_OBJECTS = 2000  # of a list that a browser reports
_OUTCOMES = {"length": Outcome.LENGTH, "cancelled": Outcome.STOPPED}


def _or(default: object) -> WrapValidator:
    """Return the validator of what a browser reports: what cannot be has a default."""

    def read(value: Any, validate: Callable[[Any], Any]) -> Any:
        try:
            return validate(value)
        except ValidationError:
            return copy(default)

    return WrapValidator(read)


def _objects(value: object) -> list[Any]:
    return [item for item in value[:MAX_OBJECTS] if isinstance(item, Mapping)] if isinstance(value, list) else []


T = TypeVar("T")
Objects = Annotated[list[T], BeforeValidator(_objects)]
Text = Annotated[str, _or("")]
_Whole = Annotated[int, Field(ge=0, lt=2**53)]
Count = Annotated[_Whole, _or(0)]
KnownCount = Annotated[_Whole | None, _or(None)]
Seconds = Annotated[float, Field(ge=0, lt=2**53), _or(0.0)]


@dataclass
class Call:
    """A tool that the model calls; ``arguments`` is JSON text."""

    name: Text = ""
    arguments: Text = ""
    id: Text = ""


@dataclass
class Piece:
    """A piece of a response, as a server streams it."""

    text: str = ""
    # New part of each
    reasoning: str = ""
    calls: dict[int, Call] = field(default_factory=dict)  # new part of each call, by its index
    finish_reason: str | None = None  # as OpenAI's, or ``cancelled``; None until the last piece
    # Tokens generated so far, of the prompt, and of those found in the cache; None: not given here
    token_count: int | None = None
    prompt_count: int | None = None
    cached_count: int | None = None
    # New tokens that may be sent to the server with the next question; empty: not given here
    token_ids: Sequence[int] = ()


@dataclass
class Response:
    """One response to a question, which grows while it is generated."""

    text: Text = ""
    reasoning: Text = ""
    calls: Objects[Call] = field(default_factory=list)
    outcome: Annotated[Outcome, _or(Outcome.STOPPED)] = Outcome.RUNNING
    error: Text = ""  # why there is no whole response, in words for the reader; empty otherwise
    token_count: Count = 0
    prompt_count: KnownCount = None
    cached_count: KnownCount = None
    # Seconds to the first token, until the end of reasoning, and from the first to the last token
    waited: Seconds = 0.0
    thought: Seconds = 0.0
    decoded: Seconds = 0.0
    # Tokens of the text, for the server that generated them; kept as long as the page is open
    token_ids: Annotated[list[int], _or([])] = field(default_factory=list)
    context_len: KnownCount = None  # tokens that the model has room for; None: not known

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said."""
        return not (self.text or self.reasoning or self.calls)

    @property
    def may_continue(self) -> bool:
        """Whether the model may write on where the token limit cut it."""
        return self.outcome is Outcome.LENGTH and bool(self.text) and not self.calls

    def resume(self) -> None:
        """Begin again where the response was cut; counts and times are those of what is added."""
        self.outcome, self.token_count, self.waited, self.decoded = Outcome.RUNNING, 0, 0.0, 0.0

    @property
    def size(self) -> tuple[int, int, int]:
        """Something that changes when more is said."""
        return len(self.text), len(self.reasoning), sum(1 + len(call.arguments) for call in self.calls)

    def take(self, piece: Piece, elapsed: float) -> None:
        """Add one streamed piece, ``elapsed`` seconds after the question."""
        self.text += piece.text
        self.reasoning += piece.reasoning
        self.token_ids += piece.token_ids
        for index, new in sorted(piece.calls.items()):
            while len(self.calls) <= index:
                self.calls.append(Call())
            call = self.calls[index]
            call.name, call.arguments, call.id = call.name + new.name, call.arguments + new.arguments, call.id or new.id
        if self.reasoning and not self.thought and (piece.text or piece.calls):
            self.thought = elapsed
        if piece.token_count is not None and piece.token_count > self.token_count:
            if self.token_count:
                self.decoded = elapsed - self.waited
            else:
                self.waited = elapsed
            self.token_count = piece.token_count
        if piece.prompt_count is not None:
            self.prompt_count = piece.prompt_count
        if piece.cached_count is not None:
            self.cached_count = piece.cached_count
        if piece.finish_reason:
            self.outcome = _OUTCOMES.get(piece.finish_reason, Outcome.COMPLETE)

    def metrics(self) -> list[str]:
        """Return the line under the response: counts, speed, and why it ended early, if it did."""
        parts = []
        if self.token_count:
            parts.append(f"{self.token_count:,} token{'' if self.token_count == 1 else 's'}")
        if self.token_count > 1 and self.decoded > 0:
            parts.append(f"{(self.token_count - 1) / self.decoded:.1f} tokens/s")
        if self.waited:
            parts.append(f"first token after {self.waited:.2f} s")
        if self.prompt_count:
            cached = f", {self.cached_count:,} cached" if self.cached_count else ""
            parts.append(f"prompt {self.prompt_count:,}{cached}")
        if self.prompt_count and self.context_len:
            share = (self.prompt_count + self.token_count) / self.context_len
            parts.append(f"context {share:.0%} of {self.context_len:,}")
        endings = {Outcome.LENGTH: "stopped at the token limit", Outcome.STOPPED: "stopped"}
        if self.outcome in endings:
            parts.append(endings[self.outcome])
        return parts


@dataclass
class Turn:
    """A question and its responses, of which one is shown and sent with later questions."""

    question: Text = ""
    images: Annotated[tuple[Text, ...], _or(())] = ()  # files of what is shown with the question
    responses: Objects[Response] = field(default_factory=lambda: [Response()])
    shown: Count = 0  # which of the responses
    is_compared: Annotated[bool, _or(False)] = False  # all of them are shown side by side, for now

    @property
    def response(self) -> Response:
        """The response that is shown."""
        return self.responses[self.shown]

    @property
    def length(self) -> int:
        """Characters of the question and its responses."""
        return len(self.question) + sum(sum(response.size) for response in self.responses)

    def regenerate(self) -> None:
        """Begin another response. Those in which nothing was said are forgotten."""
        self.responses = [*(response for response in self.responses if not response.is_empty), Response()]
        self.shown = len(self.responses) - 1
        self.is_compared = False

    def show(self, step: int) -> None:
        """Show a response alongside the shown one, if there is one."""
        self.shown = min(max(self.shown + step, 0), len(self.responses) - 1)


def to_messages(system_prompt: str, turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return the OpenAI messages of a conversation whose last turn is still to be answered.

    Earlier turns that brought no response are left out: the model never saw a reply to them. What is said after a call
    is its result. Reasoning is left out, as models expect it. Raises `ValueError` if the images are too large, or gone;
    the text is for the reader of the page.
    """
    if image_bytes(turns) > MAX_IMAGE_BYTES:
        raise ValueError(f"The images of a conversation may have {MAX_IMAGE_BYTES >> 20} MiB together")
    messages: list[dict[str, Any]] = [{"role": "system", "content": system_prompt}] if system_prompt.strip() else []
    calls: list[Call] = []
    for turn in turns[:-1]:
        response = turn.response
        if response.text or response.calls:
            messages += _question(turn, calls)
            messages.append(
                {"role": "assistant", "content": response.text} | _called(response.calls) | _written(response)
            )
            calls = response.calls
    begun = turns[-1].response.text  # of a response that is continued
    return [*messages, *_question(turns[-1], calls), *([{"role": "assistant", "content": begun}] if begun else [])]


def continuing(messages: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Return the template's options for messages that may end in the beginning of the response."""
    is_begun = messages[-1]["role"] == "assistant"
    return {"continue_final_message": True, "add_generation_prompt": False} if is_begun else {}


def image_bytes(turns: Sequence[Turn]) -> int:
    """Return how many bytes the images of a conversation have.

    Raises `ValueError` if one is gone; the text is for the reader of the page.
    """
    try:
        return sum(Path(image).stat().st_size for turn in turns for image in turn.images)
    except OSError:
        raise ValueError("An image of this conversation is no longer there; begin a new one") from None


def _question(turn: Turn, calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Return a user's input as messages; after calls it is their results."""
    if calls:
        return [{"role": "tool", "tool_call_id": call.id, "content": turn.question} for call in calls]
    return [{"role": "user", "content": _content(turn)}]


def _written(response: Response) -> dict[str, Any]:
    """Return the tokens of a response that is all text: a later turn begins with them (`lmdeploy.known_responses`)."""
    return (
        {"token_ids": response.token_ids} if response.token_ids and not (response.reasoning or response.calls) else {}
    )


def _called(calls: Sequence[Call]) -> dict[str, Any]:
    if not calls:
        return {}
    reported = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]
    return {"tool_calls": reported}


def _content(turn: Turn) -> str | list[dict[str, Any]]:
    """Return a question as the content of a message."""
    if not turn.images:
        return turn.question
    urls = [f"data:image/any;base64,{base64.b64encode(Path(image).read_bytes()).decode()}" for image in turn.images]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*parts, {"type": "text", "text": turn.question}]
