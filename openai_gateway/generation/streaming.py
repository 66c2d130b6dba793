"""Responses as server-sent events. The code that runs once a token joins bytes encoded beforehand."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.error_handling import as_api_error
from openai_gateway.errors import ApiError
from openai_gateway.generation.cancellation import ClientDisconnected, run_unless_disconnected
from openai_gateway.generation.collecting import collect, total
from openai_gateway.generation.merging import merge
from openai_gateway.protocol.outputs import Usage

logger = logging.getLogger(__name__)

SLOT = "\x00slot\x00"  # marks where a value goes in an event's payload
# For the OpenAPI document: what a route answers when it streams.
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


def event(payload: bytes) -> bytes:
    """Return JSON text as one server-sent event."""
    return b"data: " + payload + b"\n\n"


class EventTemplate:
    """An event of which only one value changes."""

    __slots__ = ("_head", "_tail")

    def __init__(self, payload: dict[str, Any]) -> None:
        self._head, self._tail = event(orjson.dumps(payload)).split(orjson.dumps(SLOT))

    def fill(self, value: object) -> bytes:
        """Return the event with `value` in it."""
        return self._head + orjson.dumps(value) + self._tail


class ChoiceWriter(Protocol):
    """Writes the events of one choice."""

    async def write(self, chunks: Sequence[GenerateChunk]) -> bytes:
        """Return the events for the next chunks of the choice, at least one; more when the reader is slow."""


class ResponseWriter(ChoiceWriter, Protocol):
    """Writes the events of a response that has one choice, which add up to `response`."""

    response: dict[str, Any]

    async def end(self, usage: Usage) -> bytes:
        """Return the last events, after which the response is complete."""


async def respond(
    request: Request,
    chunks: AsyncGenerator[GenerateChunk, None],
    writer: ResponseWriter,
    *,
    streams: bool | None,
    frame_error: Callable[[ApiError], bytes] | None = None,
    media_type: str = "text/event-stream",
) -> Response:
    """Return the HTTP response of a writer: its events as they come, or the response that they add up to."""
    if streams:
        return EventResponse(event_stream([chunks], [writer], writer.end), frame_error, media_type)
    responses = await run_unless_disconnected(request.receive, collect([chunks]))
    await writer.write(responses.choices[0].chunks)
    await writer.end(responses.usage)
    return Response(orjson.dumps(writer.response), media_type="application/json")


async def event_stream(
    streams: Sequence[AsyncGenerator[GenerateChunk, None]],
    writers: Sequence[ChoiceWriter],  # one a choice, those of the first prompt first; the same number for each prompt
    end: Callable[[Usage], Awaitable[bytes]],  # writes what comes after all choices
) -> AsyncGenerator[bytes, None]:
    """Yield the events of all choices as they come, and the end of the stream.

    Yields one or more whole events. Nothing is yielded before the engine's first response.
    """
    choices = len(writers) // len(streams)
    last: list[GenerateChunk] = [GenerateChunk()] * len(writers)
    async with aclosing(merge(streams)) as batches:
        async for batch in batches:
            if len(batch) == 1:
                ((number, chunk),) = batch
                which = number * choices + chunk.index
                last[which] = chunk
                events = await writers[which].write((chunk,))
            else:
                together: dict[int, list[GenerateChunk]] = {}
                for number, chunk in batch:
                    which = number * choices + chunk.index
                    last[which] = chunk
                    together.setdefault(which, []).append(chunk)
                events = b"".join([await writers[which].write(chunks) for which, chunks in together.items()])
            if events:
                yield events
    yield await end(total(last, choices))


class EventResponse(Response):
    """A response that sends events as they come, and stops the engine when its client leaves.

    An error before the first event is answered with its HTTP status; a later one becomes the stream's last event.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],  # whole events
        # Returns the last event of a stream that fails, given the error
        frame_error: Callable[[ApiError], bytes] | None = None,
        media_type: str = "text/event-stream",
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"}, media_type=media_type)
        del self.headers["content-length"]
        self._events = events
        self._frame_error = frame_error or (lambda error: event(error.body()))

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
                last = self._frame_error(as_api_error(error))
                await send({"type": "http.response.body", "body": last, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
