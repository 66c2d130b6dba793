"""Common steps of chat completions and completions: chunks as their bodies ask for them, and their streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Protocol

from fastapi import Request

from lmdeploy.serve.client import GenerateChunk, GenerateRequest
from openai_gateway.gateway import Gateway
from openai_gateway.generation.collecting import total
from openai_gateway.generation.streaming import SLOT, ChoiceWriter, EventResponse, EventTemplate, event_stream
from openai_gateway.generation.watching import cut_if_too_long, with_stop_strings
from openai_gateway.models import Chosen
from openai_gateway.protocol.generation import GenerationFields
from openai_gateway.protocol.outputs import Usage

_DONE = b"data: [DONE]\n\n"
_ROLE = b'"delta":{"role":'  # of the first event of a chat
_NONE = b'"usage":null,"choices":'  # of every event; a text has a backslash before its quotes


class CompletionChoiceWriter(ChoiceWriter, Protocol):
    """Writes the events of one choice, and knows what its tokens were."""

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the reasoning so far."""


async def dispatch_completion(
    body: GenerationFields, request: Request, gateway: Gateway, chosen: Chosen, generate: GenerateRequest
) -> AsyncGenerator[GenerateChunk, None]:
    """Return the engine's stream for one prompt of a body, as the body wants its texts and refusals."""
    chunks = await gateway.dispatch(
        request, chosen, generate, user=body.user, session_id=body.session_id, choices=body.choices
    )
    if body.shown_stops:
        chunks = with_stop_strings(chunks, body.shown_stops)
    return cut_if_too_long(chunks, body.choices) if body.is_of_lmdeploy else chunks


def completion_stream(
    body: GenerationFields,
    streams: Sequence[AsyncGenerator[GenerateChunk, None]],
    frame: dict[str, Any],  # members that all events have
    # Makes the writer of a choice, given the frame of its events and its number
    new_writer: Callable[[dict[str, Any], int], CompletionChoiceWriter],
) -> EventResponse:
    """Return the streamed response to a body."""
    usage_event = EventTemplate({**frame, "choices": [], "usage": SLOT}) if body.includes_usage else None
    if body.includes_usage:
        frame = {**frame, "usage": None}  # as OpenAI: null in every chunk but the last
    writers = [new_writer(frame, index) for index in range(len(streams) * body.choices)]

    async def end(usage: Usage) -> bytes:
        usage.completion_tokens_details.reasoning_tokens = sum(writer.reasoning_tokens for writer in writers)
        return _DONE if usage_event is None else usage_event.fill(usage.model_dump()) + _DONE

    counting = [_CountingWriter(writer) for writer in writers] if body.counts_always else writers
    return EventResponse(event_stream(streams, counting, end))


class _CountingWriter:
    """Writes the tokens of the prompt and of the choice so far in each event (vLLM's ``continuous_usage_stats``)."""

    def __init__(self, writer: ChoiceWriter) -> None:
        self._writer = writer  # writes the events, with ``usage`` null before their choices
        self._begins = True

    async def write(self, chunks: Sequence[GenerateChunk]) -> bytes:
        events = await self._writer.write(chunks)
        usage = total(chunks[-1:], 1)
        if self._begins and _ROLE in events:  # as in vLLM: the event before the first token counts none
            self._begins = False
            none = usage.model_copy(update={"completion_tokens": 0, "total_tokens": usage.prompt_tokens})
            events = events.replace(_NONE, _counted(none), 1)
        return events.replace(_NONE, _counted(usage))


def _counted(usage: Usage) -> bytes:
    return b'"usage":' + usage.model_dump_json().encode() + b',"choices":'
