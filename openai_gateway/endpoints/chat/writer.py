"""Events of a streamed chat completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.generation.collecting import finish_reason
from openai_gateway.generation.logprobs import chat_logprobs
from openai_gateway.generation.streaming import SLOT, EventTemplate
from openai_gateway.generation.token_texts import TokenTexts
from openai_gateway.reasoning import ReasoningDelta, ReasoningParser
from openai_gateway.tools.calls import call_id
from openai_gateway.tools.events import ArgumentsFound, CallBegun, CallBroken, Event, TextFound
from openai_gateway.tools.parser import ToolCallParser


class ChatWriter:
    """Writes one choice.

    Parameters
    ----------
    frame : dict
        What is the same in every event of the stream.
    index : int
        Of the choice.
    texts : TokenTexts, optional
        Log probabilities are written with them; None: not written.
    reasoning : ReasoningParser, optional
        Finds them in the response; None: there are none.
    reports_reasoning : bool
        Whether they are written.
    parser : ToolCallParser, optional
        Finds the calls in the response; None: all of it is text.
    max_calls : int, optional
        Further calls are left out.
    reports_tokens : bool
        Whether the last event reports the tokens of the whole response.
    reason_of_calls : str
        ``tool_calls``, or ``function_call`` where calls are written as they were before there were tools.
    """

    def __init__(
        self,
        frame: dict[str, Any],
        index: int,
        *,
        texts: TokenTexts | None = None,
        reasoning: ReasoningParser | None = None,
        reports_reasoning: bool = True,
        parser: ToolCallParser | None = None,
        max_calls: int | None = None,
        reports_tokens: bool = False,
        reason_of_calls: str = "tool_calls",
    ) -> None:
        self._frame = frame
        self._index = index
        self._texts = texts
        self._reasoning_parser = reasoning
        self._reports_reasoning = reports_reasoning
        self._parser = parser
        self._max_calls = max_calls
        self._tokens: list[int] | None = [] if reports_tokens else None
        self._calls: set[int] = set()
        self._reason_of_calls = reason_of_calls
        self._opening = self._event({"role": SLOT, "content": ""}).fill("assistant")
        self._content = self._event({"content": SLOT})
        self._reasoning = self._event({"reasoning_content": SLOT})
        self._finish = self._event({}, finish_reason=SLOT)

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the reasoning so far."""
        return 0 if self._reasoning_parser is None else self._reasoning_parser.token_count

    async def write(self, chunks: Sequence[GenerateChunk]) -> bytes:
        """Return the events for the next chunks of the choice."""
        events, self._opening = self._opening, b""
        text = chunks[0].text if len(chunks) == 1 else "".join(chunk.text for chunk in chunks)
        last = chunks[-1]
        if self._tokens is not None:
            self._tokens += [token for chunk in chunks for token in chunk.token_ids]
        if self._texts is not None:
            events += await self._with_logprobs(text, chunks, self._texts)
        elif text or self._reasoning_parser is not None:
            events += self._with_text(text, chunks)
        if last.finish_reason is None:
            return events
        if self._reasoning_parser is not None:
            events += self._with_delta(self._reasoning_parser.finish())
        if self._parser is not None:
            events += self._with_calls(self._parser.finish())
        reason: str = finish_reason(last)
        finish = self._finish if self._tokens is None else self._event({}, finish_reason=SLOT, token_ids=self._tokens)
        return events + finish.fill(self._reason_of_calls if self._calls and reason == "stop" else reason)

    async def _with_logprobs(self, text: str, chunks: Sequence[GenerateChunk], texts: TokenTexts) -> bytes:
        if not text and not any(chunk.token_ids for chunk in chunks):
            return b"" if self._reasoning_parser is None else self._with_text(text, chunks)
        logprobs = {"content": await chat_logprobs(chunks, texts), "refusal": None}
        if self._parser is None and self._reasoning_parser is None:
            return self._event({"content": SLOT}, logprobs=logprobs).fill(text)
        return self._event({"content": SLOT}, logprobs=logprobs).fill("") + self._with_text(text, chunks)

    def _with_text(self, text: str, chunks: Sequence[GenerateChunk]) -> bytes:
        if self._reasoning_parser is None:
            return self._with_content(text)
        return self._with_delta(self._reasoning_parser.feed_chunks(chunks))

    def _with_delta(self, delta: ReasoningDelta) -> bytes:
        events = self._reasoning.fill(delta.reasoning) if delta.reasoning and self._reports_reasoning else b""
        return events + self._with_content(delta.content)

    def _with_content(self, text: str) -> bytes:
        if self._parser is not None:
            return self._with_calls(self._parser.feed(text))
        return self._content.fill(text) if text else b""

    def _with_calls(self, found: Sequence[Event]) -> bytes:
        return b"".join(self._found(event) for event in found)

    def _found(self, event: Event) -> bytes:
        match event:
            case TextFound():
                return self._content.fill(event.text)
            case CallBegun() if self._is_wanted(event.index):
                self._calls.add(event.index)
                function = {"name": SLOT, "arguments": ""}
                if self._reason_of_calls == "function_call":
                    return self._event({"function_call": function}).fill(event.name)
                call = {"index": event.index, "id": call_id(), "type": "function", "function": function}
                return self._event({"tool_calls": [call]}).fill(event.name)
            case ArgumentsFound() if self._is_wanted(event.index):
                if self._reason_of_calls == "function_call":
                    return self._event({"function_call": {"arguments": SLOT}}).fill(event.text)
                call = {"index": event.index, "function": {"arguments": SLOT}}
                return self._event({"tool_calls": [call]}).fill(event.text)
            case CallBroken():
                self._calls.discard(event.index)
                return self._content.fill(event.text)
        return b""

    def _is_wanted(self, call: int) -> bool:
        return self._max_calls is None or call < self._max_calls

    def _event(
        self, delta: dict[str, Any], *, finish_reason: str | None = None, logprobs: Any = None, **further: Any
    ) -> EventTemplate:
        choice = {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason, **further}
        return EventTemplate({**self._frame, "choices": [choice]})
