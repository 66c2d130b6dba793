"""Response of Ollama's API, as lines of JSON or whole."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, Literal

import orjson

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.errors import ApiError
from openai_gateway.generation.logprobs import chat_logprobs
from openai_gateway.generation.response import ResponseMachine, WholeResponse
from openai_gateway.generation.token_texts import TokenTexts
from openai_gateway.protocol.outputs import Usage
from openai_gateway.tools.events import Call, CallBroken, CallEnded, Event, ReasoningFound, TextFound

Kind = Literal["chat", "generate"]
# For the OpenAPI document: what a route answers when it streams.
LINES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/x-ndjson": {}}}}


class LineWriter:
    """Writes one response; `response` is all of it, once it has ended."""

    def __init__(
        self, kind: Kind, model: str, begin: float, machine: ResponseMachine, texts: TokenTexts | None = None
    ) -> None:
        self._kind = kind  # ``chat``: pieces are messages; ``generate``: texts
        self._model = model
        self._begin = begin  # when the request came, by ``time.perf_counter``
        self._first: float | None = None  # when the first piece came
        self._machine = machine
        self._whole = WholeResponse()
        self._texts = texts
        self._logprobs: list[dict[str, Any]] = []  # of the whole response
        self._sent = 0  # of these
        self._engine_seconds: tuple[float, ...] = ()
        self._load_seconds = 0.0
        self.response: dict[str, Any] = {}

    async def write(self, chunks: Sequence[GenerateChunk]) -> bytes:
        """Return the lines for the next chunks."""
        self._first = self._first or time.perf_counter()
        if self._texts is not None:
            self._logprobs += await chat_logprobs(chunks, self._texts)
        if chunks[-1].finish_reason is not None:
            self._engine_seconds, self._load_seconds = chunks[-1].engine_seconds, chunks[-1].load_seconds
        return b"".join(map(self._written, self._machine.feed(chunks)))

    async def end(self, usage: Usage) -> bytes:
        """Return the last line, after which `response` is whole."""
        now = time.perf_counter()
        first = self._first or now
        measured = (-1.0, *self._engine_seconds)[-2:]  # by the engine, negative where it was not
        prompt, response = (
            seen if of_engine < 0 else of_engine
            for of_engine, seen in zip(measured, (first - self._begin, now - first), strict=True)
        )
        last = {
            "done": True,
            "done_reason": self._whole.ended.reason,
            "total_duration": nanoseconds(now - self._begin),
            "load_duration": int(self._load_seconds * 1e9),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(prompt),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(response),
        }
        unwritten = self._next_logprobs()
        everything = {"logprobs": self._logprobs} if self._texts is not None else {}
        whole = self._whole
        calls = [_as_written(whole.calls[index]) for index in sorted(whole.whole_calls)]
        self.response = piece(self._kind, self._model, whole.text, whole.reasoning, calls) | everything | last
        return orjson.dumps(piece(self._kind, self._model, "") | unwritten | last) + b"\n"

    def _next_logprobs(self) -> dict[str, Any]:
        """Return those of the tokens since the last line, as a member of the next one."""
        logprobs, self._sent = self._logprobs[self._sent :], len(self._logprobs)
        return {"logprobs": logprobs} if logprobs else {}

    def _written(self, event: Event) -> bytes:
        self._whole.add((event,))
        match event:
            case ReasoningFound():
                return self._line("", event.text)
            case TextFound() | CallBroken():
                return self._line(event.text)
            case CallEnded():  # one that is cut has no arguments that could be read
                return self._line("", calls=[_as_written(self._whole.calls[event.index])])
        return b""

    def _line(self, text: str, reasoning: str = "", calls: Sequence[dict[str, Any]] = ()) -> bytes:
        line = piece(self._kind, self._model, text, reasoning, calls) | self._next_logprobs()
        return orjson.dumps(line | {"done": False}) + b"\n"


def _as_written(call: Call) -> dict[str, Any]:
    return {"function": {"name": call.name, "arguments": json.loads(call.arguments)}}


def piece(
    kind: Kind, model: str, text: str, reasoning: str = "", calls: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Return the fields of every line: the next piece of a response."""
    delta: dict[str, Any] = {"thinking": reasoning} if reasoning else {}
    if kind == "generate":
        delta["response"] = text
    else:
        message = {"role": "assistant", "content": text, **delta} | ({"tool_calls": list(calls)} if calls else {})
        delta = {"message": message}
    return {"model": model, "created_at": datetime.now(timezone.utc).isoformat(), **delta}


def nanoseconds(seconds: float) -> int:
    """Return a duration as Ollama counts it; at least 1, by which clients divide."""
    return max(1, int(seconds * 1e9))


def last_line(error: ApiError) -> bytes:
    """Return the last line of a stream that fails."""
    return error.ollama_body() + b"\n"
