"""Events of a streamed chat completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.endpoints.chat.protocol import ChatCompletionRequest, ReasonOfCalls
from openai_gateway.generation.logprobs import chat_logprobs
from openai_gateway.generation.response import ResponseMachine
from openai_gateway.generation.streaming import SLOT, EventTemplate
from openai_gateway.generation.token_texts import TokenTexts
from openai_gateway.protocol.outputs import FinishReason
from openai_gateway.tools.events import (
    ArgumentsFound,
    CallBegun,
    CallBroken,
    Ended,
    Event,
    ReasoningFound,
    TextFound,
    call_id,
)


class ChatWriter:
    """Writes one choice."""

    def __init__(
        self,
        frame: dict[str, Any],  # what is the same in every event of the stream
        index: int,
        body: ChatCompletionRequest,
        machine: ResponseMachine,
        texts: TokenTexts | None = None,
    ) -> None:
        self._frame = frame
        self._index = index
        self._machine = machine
        self._texts = texts
        self._reports_reasoning = body.include_reasoning is not False
        self._tokens: list[int] | None = [] if body.return_token_ids else None
        self._reason_of_calls = body.reason_of_calls
        # LMDeploy's client reads role and content in every delta, and no event for the role alone.
        self._of_each = {"role": "assistant", "content": ""} if body.is_of_lmdeploy else {}
        self._opening = b"" if body.is_of_lmdeploy else self._event({"role": SLOT, "content": ""}).fill("assistant")
        self._content = self._event({"content": SLOT})
        self._reasoning = self._event({"reasoning_content": SLOT})

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the reasoning so far."""
        return self._machine.reasoning_tokens

    async def write(self, chunks: Sequence[GenerateChunk]) -> bytes:
        """Return the events for the next chunks of the choice."""
        events, self._opening = self._opening, b""
        if self._tokens is not None:
            self._tokens += [token for chunk in chunks for token in chunk.token_ids]
        if self._machine.is_text_only:  # once a token
            text = chunks[0].text if len(chunks) == 1 else "".join(chunk.text for chunk in chunks)
            if self._texts is not None:
                events += await self._logprobs(text, chunks, self._texts)
            elif text:
                events += self._content.fill(text)
            return (
                events if chunks[-1].finish_reason is None else events + self._written(self._machine.feed(chunks)[-1])
            )
        if self._texts is not None:
            events += await self._logprobs("", chunks, self._texts)
        return events + b"".join(map(self._written, self._machine.feed(chunks)))

    async def _logprobs(self, text: str, chunks: Sequence[GenerateChunk], texts: TokenTexts) -> bytes:
        """Return the event with the log probabilities of the tokens of `chunks`."""
        if not text and not any(chunk.token_ids for chunk in chunks):
            return b""
        logprobs = {"content": await chat_logprobs(chunks, texts), "refusal": None}
        return self._event({"content": SLOT}, logprobs=logprobs).fill(text)

    def _written(self, event: Event) -> bytes:
        match event:
            case TextFound() | CallBroken():
                return self._content.fill(event.text)
            case ReasoningFound() if self._reports_reasoning:
                return self._reasoning.fill(event.text)
            case CallBegun():
                return self._call(event.index, {"name": SLOT, "arguments": ""}, is_new=True).fill(event.name)
            case ArgumentsFound():
                return self._call(event.index, {"arguments": SLOT}).fill(event.text)
            case Ended():
                further: dict[str, Any] = {} if self._tokens is None else {"token_ids": self._tokens}
                if event.stop_reason is not None:
                    further["stop_reason"] = event.stop_reason
                return self._event({}, finish_reason=SLOT, **further).fill(reason_of(event, self._reason_of_calls))
        return b""

    def _call(self, index: int, function: dict[str, Any], *, is_new: bool = False) -> EventTemplate:
        if self._reason_of_calls == "function_call":
            return self._event({"function_call": function})
        identity = {"id": call_id(), "type": "function"} if is_new else {}
        return self._event({"tool_calls": [{"index": index, **identity, "function": function}]})

    def _event(
        self, delta: dict[str, Any], *, finish_reason: str | None = None, logprobs: Any = None, **further: Any
    ) -> EventTemplate:
        delta = {**self._of_each, **delta}
        choice = {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason, **further}
        return EventTemplate({**self._frame, "choices": [choice]})


def reason_of(ended: Ended, reason_of_calls: ReasonOfCalls) -> FinishReason | ReasonOfCalls:
    """Return ``finish_reason``, which is `reason_of_calls` for a response that ended with calls."""
    return reason_of_calls if ended.has_calls and ended.reason == "stop" else ended.reason
