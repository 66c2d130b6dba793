"""What was said in one browser, and how an answer comes into it. Knows nothing of the page."""

import asyncio
import base64
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from lmdeploy.serve.client import GenerateChunk, GenerateRequest, TritonRequestError, TritonUnavailable

logger = logging.getLogger(__name__)


class Outcome(Enum):
    """How far an answer is."""

    RUNNING = "running"
    COMPLETE = "complete"
    LENGTH = "length"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass
class Turn:
    """One question and its answer, which grows while it is generated.

    Attributes
    ----------
    pictures
        Files of what is shown with the question.
    error
        Why there is no whole answer, in words for the reader; empty otherwise.
    started, first_token, last_token
        Times of ``time.monotonic()`` in seconds; 0 while not reached.
    """

    question: str
    answer: str = ""
    outcome: Outcome = Outcome.RUNNING
    error: str = ""
    token_count: int = 0
    started: float = field(default_factory=time.monotonic)
    first_token: float = 0.0
    last_token: float = 0.0
    pictures: tuple[str, ...] = ()

    def take(self, chunk: GenerateChunk, now: float) -> None:
        """Add one streamed piece of the answer."""
        self.answer += chunk.text
        if chunk.generate_token_len > self.token_count:
            self.token_count = chunk.generate_token_len
            self.first_token = self.first_token or now
            self.last_token = now
        if chunk.finish_reason:
            reasons = {"length": Outcome.LENGTH, "cancelled": Outcome.STOPPED}
            self.outcome = reasons.get(chunk.finish_reason, Outcome.COMPLETE)

    def summary(self) -> str:
        """Return the line under the answer: token count, speed, and why it ended early, if it did."""
        parts = []
        if self.token_count:
            parts.append(f"{self.token_count} token{'' if self.token_count == 1 else 's'}")
        decoding = self.last_token - self.first_token
        if self.token_count > 1 and decoding > 0:
            parts.append(f"{(self.token_count - 1) / decoding:.1f} tokens/s")
        if self.first_token:
            parts.append(f"first after {self.first_token - self.started:.2f} s")
        endings = {Outcome.LENGTH: "ended at the most tokens allowed", Outcome.STOPPED: "stopped"}
        if self.outcome in endings:
            parts.append(endings[self.outcome])
        return " · ".join(parts)


@dataclass(frozen=True)
class Settings:
    """What the page's controls say about the next answer."""

    system_prompt: str
    temperature: float
    top_p: float
    max_new_tokens: int
    adapter: str | None = None


class Generator(Protocol):
    """The part of ``TritonClient`` used here."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        """Stream the answer to a request."""
        ...


def to_messages(system_prompt: str, turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Return the OpenAI messages of a conversation whose last turn is still to be answered.

    Earlier turns that brought no answer are left out: the model never saw a reply to them.
    """
    messages: list[dict[str, Any]] = [{"role": "system", "content": system_prompt}] if system_prompt.strip() else []
    for turn in turns[:-1]:
        if turn.answer:
            messages += [{"role": "user", "content": _said(turn)}, {"role": "assistant", "content": turn.answer}]
    return [*messages, {"role": "user", "content": _said(turns[-1])}]


def _said(turn: Turn) -> str | list[dict[str, Any]]:
    """Return a question as the content of a message."""
    if not turn.pictures:
        return turn.question
    urls = [
        f"data:image/any;base64,{base64.b64encode(Path(picture).read_bytes()).decode()}" for picture in turn.pictures
    ]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*parts, {"type": "text", "text": turn.question}]


async def answer_last(client: Generator, turns: Sequence[Turn], settings: Settings) -> None:
    """Generate the answer of the last turn into it. Never raises; how it ended is in the turn.

    Cancelling the task that runs this leaves the client's stream, which cancels the request in the engine.
    """
    turn = turns[-1]
    request = GenerateRequest(
        messages=to_messages(settings.system_prompt, turns),
        stream=True,
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        top_p=settings.top_p,
        lora_name=settings.adapter,
    )
    try:
        async for chunk in client.generate(request):
            turn.take(chunk, time.monotonic())
        if turn.outcome is Outcome.RUNNING:
            turn.outcome, turn.error = Outcome.FAILED, "The server ended the answer early."
    except asyncio.CancelledError:
        turn.outcome = Outcome.STOPPED
    except Exception as error:
        if not isinstance(error, TritonUnavailable | TritonRequestError):
            logger.exception("an answer failed")
        turn.outcome, turn.error = Outcome.FAILED, readable(error)


def readable(error: Exception) -> str:
    """Return what a reader of the page should be told about an error."""
    if isinstance(error, TritonUnavailable):
        return "The model server is away. Press Retry when it is back."
    text = error.message if isinstance(error, TritonRequestError) else str(error)
    return f"The model server refused or failed this: {text or type(error).__name__}"
