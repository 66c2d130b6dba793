"""Token counts in every event of a stream (vLLM's ``continuous_usage_stats``)."""

from __future__ import annotations

from collections.abc import Sequence

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.generation.collecting import total
from openai_gateway.generation.streaming import ChoiceWriter

_NONE = b'"usage":null,"choices":'  # of every event; a text has a backslash before its quotes


class CountingWriter:
    """Writes one choice, with the tokens of the prompt and of the choice so far in each event.

    Parameters
    ----------
    writer : ChoiceWriter
        Writes the events, with ``usage`` null before their choices.
    """

    def __init__(self, writer: ChoiceWriter) -> None:
        self._writer = writer

    async def write(self, chunks: Sequence[GenerateChunk]) -> bytes:
        """Return the events for the next chunks of the choice."""
        events = await self._writer.write(chunks)
        usage = total(chunks[-1:], 1).model_dump_json().encode()
        return events.replace(_NONE, b'"usage":' + usage + b',"choices":')
