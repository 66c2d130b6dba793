"""A response as lines of JSON, or as one."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, Literal

import orjson

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.generation.collecting import finish_reason
from openai_gateway.generation.logprobs import chat_logprobs
from openai_gateway.generation.token_texts import TokenTexts
from openai_gateway.protocol.outputs import Usage
from openai_gateway.reasoning import ReasoningDelta, ReasoningParser
from openai_gateway.tools.events import ArgumentsFound, CallBegun, CallBroken, Event, TextFound
from openai_gateway.tools.parser import ToolCallParser

Kind = Literal["chat", "generate"]


class LineWriter:
    """Writes one response; `response` is all of it, once it has ended.

    Parameters
    ----------
    kind
        ``chat``: pieces are messages; ``generate``: texts.
    model
        What the caller calls it.
    begin
        When the request came, by ``time.perf_counter``.
    reasoning, parser
        Find reasoning and calls in the response; None: there are none.
    texts
        Log probabilities are written with them; None: not written.
    """

    def __init__(
        self,
        kind: Kind,
        model: str,
        begin: float,
        reasoning: ReasoningParser | None,
        parser: ToolCallParser | None,
        texts: TokenTexts | None = None,
    ) -> None:
        self._kind = kind
        self._model = model
        self._begin = begin
        self._first: float | None = None  # when the first piece came
        self._reasoning_parser, self._parser = reasoning, parser
        self._text, self._reasoning = "", ""
        self._calls: list[dict[str, Any]] = []
        self._begun: tuple[str, str] | None = None  # the call being found: name, arguments so far
        self._reason = ""
        self._texts = texts
        self._logprobs: list[dict[str, Any]] = []  # of the whole response
        self._written = 0  # of these
        self._engine_seconds: tuple[float, ...] = ()
        self.response: dict[str, Any] = {}

    async def write(self, chunks: Sequence[GenerateChunk]) -> bytes:
        """Return the lines for the next chunks."""
        self._first = self._first or time.perf_counter()
        if self._texts is not None:
            self._logprobs += await chat_logprobs(chunks, self._texts)
        lines = self._with_delta(self._split("".join(chunk.text for chunk in chunks)))
        if chunks[-1].finish_reason is not None:
            self._reason, self._engine_seconds = finish_reason(chunks[-1]), chunks[-1].engine_seconds
            lines += self._with_delta(self._reasoning_parser.finish() if self._reasoning_parser else ReasoningDelta())
            lines += self._found(self._parser.finish() if self._parser else [])
            lines += self._end_of_call()
        return lines

    def end(self, usage: Usage) -> bytes:
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
            "done_reason": self._reason,
            "total_duration": nanoseconds(now - self._begin),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(prompt),
            "eval_count": usage.completion_tokens,
            "eval_duration": nanoseconds(response),
        }
        unwritten = self._next_logprobs()
        everything = {"logprobs": self._logprobs} if self._texts is not None else {}
        self.response = piece(self._kind, self._model, self._text, self._reasoning, self._calls) | everything | last
        return orjson.dumps(piece(self._kind, self._model, "") | unwritten | last) + b"\n"

    def _next_logprobs(self) -> dict[str, Any]:
        """Return those of the tokens since the last line, as a member of the next one."""
        logprobs, self._written = self._logprobs[self._written :], len(self._logprobs)
        return {"logprobs": logprobs} if logprobs else {}

    def _split(self, text: str) -> ReasoningDelta:
        return self._reasoning_parser.feed(text) if self._reasoning_parser else ReasoningDelta(content=text)

    def _with_delta(self, delta: ReasoningDelta) -> bytes:
        lines = b""
        if delta.reasoning:
            self._reasoning += delta.reasoning
            lines += self._line("", delta.reasoning)
        if delta.content:
            lines += self._found(self._parser.feed(delta.content) if self._parser else [TextFound(delta.content)])
        return lines

    def _found(self, found: Sequence[Event]) -> bytes:
        return b"".join(self._one(event) for event in found)

    def _one(self, event: Event) -> bytes:
        match event:
            case TextFound():
                return self._end_of_call() + self._add(event.text)
            case CallBegun():
                lines = self._end_of_call()
                self._begun = (event.name, "")
                return lines
            case ArgumentsFound() if self._begun is not None:
                self._begun = (self._begun[0], self._begun[1] + event.text)
            case CallBroken():
                self._begun = None
                return self._add(event.text)
        return b""

    def _end_of_call(self) -> bytes:
        """Describe the call being found, if there is one: its arguments are whole."""
        if self._begun is None:
            return b""
        (name, arguments), self._begun = self._begun, None
        call = {"function": {"name": name, "arguments": json.loads(arguments or "{}")}}
        self._calls.append(call)
        return self._line("", calls=[call])

    def _add(self, text: str) -> bytes:
        self._text += text
        return self._line(text)

    def _line(self, text: str, reasoning: str = "", calls: Sequence[dict[str, Any]] = ()) -> bytes:
        line = piece(self._kind, self._model, text, reasoning, calls) | self._next_logprobs()
        return orjson.dumps(line | {"done": False}) + b"\n"


def piece(
    kind: Kind, model: str, text: str, reasoning: str = "", calls: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Return what every line has: the next piece of a response."""
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
