"""A message of ``/v1/messages``, built up from the engine's chunks, and the events that say how."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

import orjson

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.endpoints.messages.protocol import MessagesRequest
from openai_gateway.generation.collecting import finish_reason
from openai_gateway.protocol.outputs import Usage
from openai_gateway.reasoning import ReasoningDelta, ReasoningParser
from openai_gateway.tools.calls import parser_for
from openai_gateway.tools.events import ArgumentsFound, CallBegun, CallBroken, Event, TextFound

_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}


class MessageWriter:
    """Writes the events of one message; `message` is the message so far.

    Parameters
    ----------
    body : MessagesRequest
        What was asked.
    message_id, model : str
        Of the message.
    reasoning : ReasoningParser, optional
        Finds them in the response; None: there are none.
    format : str
        How calls are written.
    """

    def __init__(
        self,
        body: MessagesRequest,
        message_id: str,
        model: str,
        reasoning: ReasoningParser | None = None,
        format: str = "auto",
    ) -> None:
        self._parser = parser_for(body.usable_tools, is_forced=bool(body.forced_tools), parser=format)
        self._reasoning_parser = reasoning
        self._reports_reasoning = body.reports_reasoning
        self._max_calls = body.max_calls
        self._max_tokens = body.max_tokens
        self._stop_sequences = body.stop_sequences or ()
        self._block: dict[str, Any] | None = None  # being written
        self._arguments = ""  # of the call being written
        self._opening = True
        self.message: dict[str, Any] = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": 0,
                "output_tokens": 0,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
            },
        }

    async def write(self, chunks: Sequence[GenerateChunk]) -> bytes:
        """Return the events for the next chunks."""
        events = b""
        if self._opening:
            self._opening = False
            self.message["usage"] |= _prompt_usage(chunks[0].input_token_len, chunks[0].cached_token_len)
            events += _event("message_start", message=self.message)
        text = "".join(chunk.text for chunk in chunks)
        events += self._with_delta(
            self._reasoning_parser.feed_chunks(chunks) if self._reasoning_parser else ReasoningDelta(content=text)
        )
        last = chunks[-1]
        if last.finish_reason is not None:
            events += self._with_delta(self._reasoning_parser.finish() if self._reasoning_parser else ReasoningDelta())
            events += self._found(self._parser.finish() if self._parser else [])
            events += self._close()
            self._stop(finish_reason(last), last.stop_string, last.generate_token_len)
        return events

    def end(self, usage: Usage) -> bytes:
        """Return the last events, after which the message is complete."""
        cached = usage.prompt_tokens_details.cached_tokens
        counted = _prompt_usage(usage.prompt_tokens, cached) | {"output_tokens": usage.completion_tokens}
        self.message["usage"] |= counted
        delta = {"stop_reason": self.message["stop_reason"], "stop_sequence": self.message["stop_sequence"]}
        return _event("message_delta", delta=delta, usage=counted) + _event("message_stop")

    def _stop(self, reason: str, stop_string: str, tokens: int) -> None:
        if reason == "length":
            is_full = tokens < self._max_tokens
            self.message["stop_reason"] = "model_context_window_exceeded" if is_full else "max_tokens"
        elif stop_string in self._stop_sequences:  # else the template's
            self.message |= {"stop_reason": "stop_sequence", "stop_sequence": stop_string}
        else:
            called = any(block["type"] == "tool_use" for block in self.message["content"])
            self.message["stop_reason"] = "tool_use" if called else "end_turn"

    def _with_delta(self, delta: ReasoningDelta) -> bytes:
        events = b""
        if delta.reasoning and self._reports_reasoning:
            events += self._add("thinking", delta.reasoning)
        if delta.content:
            events += self._found(self._parser.feed(delta.content) if self._parser else [TextFound(delta.content)])
        return events

    def _found(self, found: Sequence[Event]) -> bytes:
        return b"".join(self._one(event) for event in found)

    def _one(self, event: Event) -> bytes:
        match event:
            case TextFound():
                return self._add("text", event.text)
            case CallBegun() if self._is_wanted(event.index):
                call = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": event.name, "input": {}}
                return self._open(call)
            case ArgumentsFound() if self._is_wanted(event.index):
                self._arguments += event.text
                return self._delta({"type": "input_json_delta", "partial_json": event.text})
            case CallBroken() if self._is_wanted(event.index):
                self._arguments = ""
                return self._add("text", event.text)
        return b""

    def _is_wanted(self, call: int) -> bool:
        return self._max_calls is None or call < self._max_calls

    def _add(self, kind: str, text: str) -> bytes:
        events = b""
        if self._block is None or self._block["type"] != kind:
            events = self._open({"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {}))
        assert self._block is not None
        delta, member = _DELTAS[kind]
        self._block[member] += text
        return events + self._delta({"type": delta, member: text})

    def _open(self, block: dict[str, Any]) -> bytes:
        events = self._close()
        self._block = block
        self.message["content"].append(block)
        return events + _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> bytes:
        """End the block being written, if there is one."""
        if self._block is None:
            return b""
        if self._block["type"] == "tool_use":
            self._block["input"] = json.loads(self._arguments or "{}")
            self._arguments = ""
        self._block = None
        return _event("content_block_stop", index=self._index)

    @property
    def _index(self) -> int:
        return len(self.message["content"]) - 1


def _prompt_usage(tokens: int, cached: int) -> dict[str, int]:
    """Return how a prompt is counted: what was found in the cache is separate."""
    return {"input_tokens": tokens - cached, "cache_read_input_tokens": cached}


def _event(kind: str, **members: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **members}) + b"\n\n"
