"""Whole (non-streamed) responses from the engine's chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

from lmdeploy.serve.client import GenerateChunk, TritonUnavailable
from openai_gateway.generation.merging import merge
from openai_gateway.protocol.outputs import FinishReason, PromptTokens, Usage


@dataclass(slots=True)
class CollectedChoice:
    """One complete choice."""

    chunks: list[GenerateChunk] = field(default_factory=list)  # as they came

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def token_ids(self) -> list[int]:
        """All tokens, if requested."""
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def finish_reason(self) -> FinishReason:
        """Finish reason."""
        return finish_reason(self.chunks[-1])


@dataclass(frozen=True, slots=True)
class CollectedChoices:
    """All choices of a request, those of the first prompt first."""

    choices: list[CollectedChoice]
    usage: Usage


async def collect(streams: Sequence[AsyncGenerator[GenerateChunk, None]], choices: int = 1) -> CollectedChoices:
    """Return the sum of `streams`; the first failure cancels the others."""
    responses = [CollectedChoice() for _ in range(len(streams) * choices)]
    async with aclosing(merge(streams)) as batches:
        async for batch in batches:
            for number, chunk in batch:
                responses[number * choices + chunk.index].chunks.append(chunk)
    last = [response.chunks[-1] for response in responses]
    return CollectedChoices(responses, total(last, choices))


def finish_reason(last: GenerateChunk) -> FinishReason:
    """Return why a response ended, given its last chunk.

    Raises `TritonUnavailable` if the engine cancelled it, which is no response for a client that is still there.
    """
    if last.finish_reason == "cancelled":
        raise TritonUnavailable("the engine cancelled a request whose client is still waiting")
    return cast(FinishReason, last.finish_reason)


def total(last: Iterable[GenerateChunk], choices: int) -> Usage:
    """Return the token counts of responses, given the last chunk of each; a prompt of several choices counts once."""
    prompt = cached = completion = 0
    reports = []
    for number, chunk in enumerate(last):
        if number % choices == 0:
            prompt += chunk.input_token_len
            cached += chunk.cached_token_len
            if chunk.cache_report is not None:
                reports.append(chunk.cache_report)
        completion += chunk.generate_token_len
    more: dict[str, Any] = {"cache_report": reports if len(reports) > 1 else reports[0]} if reports else {}
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptTokens(cached_tokens=cached),
        **more,
    )
