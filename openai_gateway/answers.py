"""Whole answers out of the engine's chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import cast

from lmdeploy.serve.client import GenerateChunk, TritonUnavailable
from openai_gateway.protocol import FinishReason, Usage


@dataclass(frozen=True, slots=True)
class Answer:
    """One complete answer."""

    text: str
    finish_reason: FinishReason
    usage: Usage


async def collect(chunks: AsyncGenerator[GenerateChunk, None]) -> Answer:
    """Return the answer `chunks` add up to."""
    text = ""
    last = None
    async with aclosing(chunks):
        async for chunk in chunks:
            text += chunk.text
            last = chunk
    assert last is not None, "the client ends every answer with a finish reason, or raises"
    return Answer(text, finish_reason(last), usage(last))


def finish_reason(last: GenerateChunk) -> FinishReason:
    """Return why an answer ended, given its last chunk.

    Raises
    ------
    TritonUnavailable
        The engine cancelled it, which is no answer for a client that is still there.
    """
    if last.finish_reason == "cancelled":
        raise TritonUnavailable("the engine cancelled a request whose client is still waiting")
    return cast(FinishReason, last.finish_reason)


def usage(last: GenerateChunk) -> Usage:
    """Return the token counts of an answer, given its last chunk."""
    prompt, completion = last.input_token_len, last.generate_token_len
    return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


def total(usages: Iterable[Usage]) -> Usage:
    """Return the sum of several token counts."""
    prompt = completion = 0
    for one in usages:
        prompt += one.prompt_tokens
        completion += one.completion_tokens
    return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
