"""Events of a streamed completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.answers import finish_reason
from openai_gateway.logprobs import completion_logprobs
from openai_gateway.streaming import SLOT, EventTemplate
from openai_gateway.token_texts import TokenTexts


class CompletionWriter:
    """Writes one choice.

    Parameters
    ----------
    frame : dict
        What is the same in every event of the stream.
    index : int
        Of the choice.
    echo : str
        Text to begin with.
    texts : TokenTexts, optional
        Log probabilities are written with them; None: not written.
    wanted : int
        Likeliest tokens to write beside each one.
    """

    def __init__(
        self, frame: dict[str, Any], index: int, *, echo: str = "", texts: TokenTexts | None = None, wanted: int = 0
    ) -> None:
        self._frame = frame
        self._index = index
        self._texts = texts
        self._wanted = wanted
        self._offset = 0
        self._text = self._event(SLOT)
        self._finish = self._event("", finish_reason=SLOT)
        self._opening = self._text.fill(echo) if echo else b""

    async def write(self, chunks: Sequence[GenerateChunk]) -> bytes:
        """Return the events for the next chunks of the choice."""
        events, self._opening = self._opening, b""
        text = chunks[0].text if len(chunks) == 1 else "".join(chunk.text for chunk in chunks)
        if self._texts is not None:
            if text or any(chunk.token_ids for chunk in chunks):
                said, self._offset = await completion_logprobs(chunks, self._texts, self._wanted, self._offset)
                events += self._event(SLOT, logprobs=said.model_dump()).fill(text)
        elif text:
            events += self._text.fill(text)
        last = chunks[-1]
        return events if last.finish_reason is None else events + self._finish.fill(finish_reason(last))

    def _event(self, text: str, *, finish_reason: str | None = None, logprobs: Any = None) -> EventTemplate:
        choice = {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        return EventTemplate({**self._frame, "choices": [choice]})
