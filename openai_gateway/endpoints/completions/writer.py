"""Events of a streamed completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.endpoints.completions.prompts import Echo
from openai_gateway.endpoints.completions.protocol import CompletionRequest
from openai_gateway.generation.collecting import finish_reason
from openai_gateway.generation.logprobs import Scored, TextCursor, completion_logprobs, scored_tokens
from openai_gateway.generation.streaming import SLOT, EventTemplate
from openai_gateway.generation.token_texts import TokenTexts


class CompletionWriter:
    """Writes one choice."""

    reasoning_tokens = 0

    def __init__(
        self, frame: dict[str, Any], index: int, body: CompletionRequest, echo: Echo, texts: TokenTexts | None = None
    ) -> None:
        self._frame = frame  # what is the same in every event of the stream
        self._index = index
        self._texts = texts
        self._num_logprobs = body.logprobs or 0
        self._echo = echo  # what to begin with; shared by the choices of a prompt
        self._has_begun = not echo.text
        self._cursor: TextCursor | None = None
        self._text = self._event(SLOT)
        self._tokens: list[int] | None = [] if body.return_token_ids else None

    async def write(self, chunks: Sequence[GenerateChunk]) -> bytes:
        """Return the events for the next chunks of the choice."""
        events = b"" if self._has_begun else await self._opening(chunks)
        text = chunks[0].text if len(chunks) == 1 else "".join(chunk.text for chunk in chunks)
        if self._texts is not None:
            if text or any(chunk.token_ids for chunk in chunks):
                events += await self._with_logprobs(text, scored_tokens(chunks), self._texts)
        elif text:
            events += self._text.fill(text)
        last = chunks[-1]
        if self._tokens is not None:
            self._tokens += [token for chunk in chunks for token in chunk.token_ids]
        if last.finish_reason is None:
            return events
        further: dict[str, Any] = {} if self._tokens is None else {"token_ids": self._tokens}
        if last.stop_reason is not None:
            further["stop_reason"] = last.stop_reason
        return events + self._event("", finish_reason=SLOT, **further).fill(finish_reason(last))

    async def _opening(self, chunks: Sequence[GenerateChunk]) -> bytes:
        """Return the event that reports the prompt."""
        self._has_begun = True
        self._echo.observe(chunks)
        if self._texts is None:
            return self._text.fill(self._echo.text)
        return await self._with_logprobs(self._echo.text, self._echo.scored, self._texts)

    async def _with_logprobs(self, text: str, scored: Sequence[Scored], texts: TokenTexts) -> bytes:
        if self._cursor is None:
            self._cursor = await self._echo.cursor(texts)
        logprobs = await completion_logprobs(scored, texts, self._num_logprobs, self._cursor)
        return self._event(SLOT, logprobs=logprobs.model_dump()).fill(text)

    def _event(
        self, text: str, *, finish_reason: str | None = None, logprobs: Any = None, **further: Any
    ) -> EventTemplate:
        choice = {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason, **further}
        return EventTemplate({**self._frame, "choices": [choice]})
