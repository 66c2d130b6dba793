"""Response and events of ``/v1/messages``, built from the engine's chunks."""

from __future__ import annotations

import hmac
import json
import secrets
import uuid
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import orjson

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.endpoints.messages.protocol import MessagesRequest
from openai_gateway.generation.response import ResponseMachine
from openai_gateway.protocol.outputs import Usage
from openai_gateway.tools.events import (
    ArgumentsFound,
    CallBegun,
    CallBroken,
    CallEnded,
    Ended,
    Event,
    ReasoningFound,
    TextFound,
)

_KEY = secrets.token_bytes(32)
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}


class MessageWriter:
    """Writes the events of one message; `response` is the message so far."""

    def __init__(self, body: MessagesRequest, message_id: str, model: str, machine: ResponseMachine) -> None:
        self._machine = machine
        self._reports_reasoning = body.reports_reasoning
        self._max_tokens = body.max_tokens
        self._stop_sequences = body.stop_sequences or ()
        self._block: dict[str, Any] | None = None  # being written
        self._arguments = ""  # of the call being written
        self._opening = True
        self.response: dict[str, Any] = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"output_tokens": 0, **_prompt_usage(0, 0)},
        }

    async def write(self, chunks: Sequence[GenerateChunk]) -> bytes:
        """Return the events for the next chunks."""
        events = b""
        if self._opening:
            self._opening = False
            self.response["usage"] |= _prompt_usage(chunks[0].input_token_len, chunks[0].cached_token_len)
            events += _event("message_start", message=self.response)
        return events + b"".join(map(self._written, self._machine.feed(chunks)))

    async def end(self, usage: Usage) -> bytes:
        """Return the last events, after which the message is complete."""
        cached = usage.prompt_tokens_details.cached_tokens
        counted = _prompt_usage(usage.prompt_tokens, cached) | {"output_tokens": usage.completion_tokens} | usage.report
        self.response["usage"] |= counted
        delta = {"stop_reason": self.response["stop_reason"], "stop_sequence": self.response["stop_sequence"]}
        return _event("message_delta", delta=delta, usage=counted) + _event("message_stop")

    def _written(self, event: Event) -> bytes:
        match event:
            case ReasoningFound() if self._reports_reasoning:
                return self._add("thinking", event.text)
            case TextFound():
                return self._add("text", event.text)
            case CallBegun():
                call = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": event.name, "input": {}}
                return self._open(call)
            case ArgumentsFound():
                self._arguments += event.text
                return self._delta({"type": "input_json_delta", "partial_json": event.text})
            case CallEnded():
                assert self._block is not None
                self._block["input"] = json.loads(self._arguments)
                return self._close()
            case CallBroken():
                return self._add("text", event.text)
            case Ended():
                events = self._close()
                self._stop(event)
                return events
        return b""

    def _stop(self, ended: Ended) -> None:
        if ended.reason == "length":
            is_full = ended.tokens < self._max_tokens and ended.stop_reason is None
            self.response["stop_reason"] = "model_context_window_exceeded" if is_full else "max_tokens"
        elif ended.stop_string in self._stop_sequences:  # else the template's
            self.response |= {"stop_reason": "stop_sequence", "stop_sequence": ended.stop_string}
        else:
            self.response["stop_reason"] = "tool_use" if ended.has_calls else "end_turn"

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
        self._block, self._arguments = block, ""
        self.response["content"].append(block)
        return events + _event("content_block_start", index=self._index, content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> bytes:
        """End the block being written, if there is one."""
        if self._block is None:
            return b""
        events = b""
        if self._block["type"] == "thinking":
            self._block["signature"] = _signature(self._block["thinking"])
            events = self._delta({"type": "signature_delta", "signature": self._block["signature"]})
        self._block = None
        return events + _event("content_block_stop", index=self._index)

    @property
    def _index(self) -> int:
        return len(self.response["content"]) - 1


def _signature(text: str) -> str:
    """Return the signature of reasoning; clients leave out reasoning without one. Here nobody checks it."""
    return b64encode(hmac.digest(_KEY, text.encode(), "sha256")).decode()


def _prompt_usage(tokens: int, cached: int) -> dict[str, int]:
    """Return how a prompt is counted: what was found in the cache is separate."""
    return {"input_tokens": tokens - cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": cached}


def _event(kind: str, **members: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **members}) + b"\n\n"
