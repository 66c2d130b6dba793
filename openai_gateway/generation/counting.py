"""Token counts in every event of a stream (vLLM's ``continuous_usage_stats``)."""

from __future__ import annotations

from collections.abc import Sequence

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.generation.collecting import total
from openai_gateway.generation.streaming import ChoiceWriter
from openai_gateway.protocol.outputs import Usage

_ROLE = b'"delta":{"role":'  # of the first event of a chat
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
        self._begins = True

    async def write(self, chunks: Sequence[GenerateChunk]) -> bytes:
        """Return the events for the next chunks of the choice."""
        events = await self._writer.write(chunks)
        usage = total(chunks[-1:], 1)
        if self._begins and _ROLE in events:  # as in vLLM: the event before the first token counts none
            self._begins = False
            none = usage.model_copy(update={"completion_tokens": 0, "total_tokens": usage.prompt_tokens})
            events = events.replace(_NONE, _counted(none), 1)
        return events.replace(_NONE, _counted(usage))


def _counted(usage: Usage) -> bytes:
    return b'"usage":' + usage.model_dump_json().encode() + b',"choices":'
