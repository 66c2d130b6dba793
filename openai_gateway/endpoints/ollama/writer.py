"""An answer as lines of JSON, or as one."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, Literal

import orjson

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.answering.collecting import finish_reason
from openai_gateway.protocol.outputs import Usage
from openai_gateway.reasoning import ReasoningParser, Told
from openai_gateway.tools.events import ArgumentsFound, CallBegun, CallBroken, Event, TextFound
from openai_gateway.tools.parser import ToolCallParser


class LineWriter:
    """Writes one answer; `answer` is all of it, once it has ended.

    Parameters
    ----------
    kind
        ``chat``: pieces are messages; ``generate``: texts.
    model
        What the caller calls it.
    begin
        When the request came, by ``time.perf_counter``.
    thoughts, parser
        Find thoughts and calls in the answer; None: there are none.
    """

    def __init__(
        self,
        kind: Literal["chat", "generate"],
        model: str,
        begin: float,
        thoughts: ReasoningParser | None,
        parser: ToolCallParser | None,
    ) -> None:
        self._kind = kind
        self._model = model
        self._begin = begin
        self._first: float | None = None  # when the first piece came
        self._thoughts, self._parser = thoughts, parser
        self._text, self._thought = "", ""
        self._calls: list[dict[str, Any]] = []
        self._begun: tuple[str, str] | None = None  # the call being found: name, arguments so far
        self._reason = ""
        self.answer: dict[str, Any] = {}

    async def write(self, chunks: Sequence[GenerateChunk]) -> bytes:
        """Return the lines for the next chunks."""
        self._first = self._first or time.perf_counter()
        lines = self._told(self._split("".join(chunk.text for chunk in chunks)))
        if chunks[-1].finish_reason is not None:
            self._reason = finish_reason(chunks[-1])
            lines += self._told(self._thoughts.finish() if self._thoughts else Told())
            lines += self._found(self._parser.finish() if self._parser else [])
            lines += self._end_of_call()
        return lines

    def end(self, usage: Usage) -> bytes:
        """Return the last line, after which `answer` is whole."""
        now = time.perf_counter()
        first = self._first or now
        last = {
            "done": True,
            "done_reason": self._reason,
            "total_duration": _nanoseconds(now - self._begin),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(first - self._begin),
            "eval_count": usage.completion_tokens,
            "eval_duration": _nanoseconds(now - first),
        }
        self.answer = self._piece(self._text, self._thought, self._calls) | last
        return orjson.dumps(self._piece("") | last) + b"\n"

    def _split(self, text: str) -> Told:
        return self._thoughts.feed(text) if self._thoughts else Told(content=text)

    def _told(self, told: Told) -> bytes:
        lines = b""
        if told.reasoning:
            self._thought += told.reasoning
            lines += self._line("", told.reasoning)
        if told.content:
            lines += self._found(self._parser.feed(told.content) if self._parser else [TextFound(told.content)])
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
        """Tell of the call being found, if there is one: its arguments are whole."""
        if self._begun is None:
            return b""
        (name, arguments), self._begun = self._begun, None
        call = {"function": {"name": name, "arguments": json.loads(arguments or "{}")}}
        self._calls.append(call)
        return self._line("", calls=[call])

    def _add(self, text: str) -> bytes:
        self._text += text
        return self._line(text)

    def _line(self, text: str, thought: str = "", calls: Sequence[dict[str, Any]] = ()) -> bytes:
        return orjson.dumps(self._piece(text, thought, calls) | {"done": False}) + b"\n"

    def _piece(self, text: str, thought: str = "", calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        told: dict[str, Any] = {"thinking": thought} if thought else {}
        if self._kind == "generate":
            told["response"] = text
        else:
            message = {"role": "assistant", "content": text, **told} | ({"tool_calls": list(calls)} if calls else {})
            told = {"message": message}
        return {"model": self._model, "created_at": datetime.now(timezone.utc).isoformat(), **told}


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
