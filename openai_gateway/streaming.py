"""Answers as server-sent events. The code that runs once a token joins bytes encoded beforehand."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.answers import finish_reason, total, usage
from openai_gateway.cancellation import ClientDisconnected, run_unless_disconnected
from openai_gateway.errors import as_api_error

logger = logging.getLogger(__name__)

SLOT = "\x00slot\x00"  # marks where a value goes in an event's payload
DONE = b"data: [DONE]\n\n"


def event(payload: bytes) -> bytes:
    """Return JSON text as one server-sent event."""
    return b"data: " + payload + b"\n\n"


class EventTemplate:
    """An event of which only one value changes.

    Parameters
    ----------
    payload : dict
        The event; `SLOT` stands where the value goes.
    """

    __slots__ = ("_head", "_tail")

    def __init__(self, payload: dict[str, Any]) -> None:
        self._head, self._tail = event(orjson.dumps(payload)).split(orjson.dumps(SLOT))

    def fill(self, value: object) -> bytes:
        """Return the event with `value` in it."""
        return self._head + orjson.dumps(value) + self._tail


@dataclass(frozen=True, slots=True)
class ChoiceEvents:
    """The events of one choice: what opens it, a piece of text, and its finish reason."""

    opening: bytes
    text: EventTemplate
    finish: EventTemplate


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a stream: its chunks, and how they are written."""

    chunks: AsyncGenerator[GenerateChunk, None]
    events: ChoiceEvents


async def event_stream(choices: Sequence[Choice], usage_event: EventTemplate | None) -> AsyncGenerator[bytes, None]:
    """Yield the events of `choices`, one choice after the other, and the end of the stream.

    Parameters
    ----------
    choices : sequence of Choice
        At least one.
    usage_event : EventTemplate, optional
        The event that counts tokens, sent before the end; None: not sent.

    Yields
    ------
    bytes
        One or more whole events. Nothing is yielded before the engine's first response.
    """
    usages = []
    for choice in choices:
        text_event = choice.events.text
        pending = choice.events.opening
        async with aclosing(choice.chunks):
            async for chunk in choice.chunks:
                if chunk.text:
                    pending += text_event.fill(chunk.text)
                if chunk.finish_reason is not None:
                    pending += choice.events.finish.fill(finish_reason(chunk))
                    usages.append(usage(chunk))
                if pending:
                    yield pending
                    pending = b""
    yield DONE if usage_event is None else usage_event.fill(total(usages).model_dump()) + DONE


class EventResponse(Response):
    """A response that sends events as they come, and stops the engine when its client leaves.

    An error before the first event is answered with its HTTP status; a later one becomes the stream's last event.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole stream over ASGI."""
        try:
            await run_unless_disconnected(receive, self._send_events(send))
        except ClientDisconnected:
            logger.debug("a client left its stream")

    async def _send_events(self, send: Send) -> None:
        async with aclosing(self._events):
            first = await anext(self._events)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": first, "more_body": True})
            try:
                async for events in self._events:
                    await send({"type": "http.response.body", "body": events, "more_body": True})
            except Exception as error:
                last = event(as_api_error(error).body())
                await send({"type": "http.response.body", "body": last, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
