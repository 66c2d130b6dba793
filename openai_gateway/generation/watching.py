"""Metrics of the chunks of a response."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing

from lmdeploy.serve.client import GenerateChunk
from lmdeploy.serve.errors import ContextExceeded
from openai_gateway.metrics.responses import Watch


async def with_stop_strings(
    chunks: AsyncGenerator[GenerateChunk, None], shown: Collection[str]
) -> AsyncGenerator[GenerateChunk, None]:
    """Yield `chunks`, and append the stop string that ended a choice to its text, if it is one of `shown`."""
    async with aclosing(chunks):
        async for chunk in chunks:
            if chunk.stop_string in shown:
                chunk.text += chunk.stop_string
            yield chunk


async def cut_if_too_long(
    chunks: AsyncGenerator[GenerateChunk, None], choices: int = 1
) -> AsyncGenerator[GenerateChunk, None]:
    """Yield `chunks`; empty responses that their limit has cut where the prompt is too long for the model.

    LMDeploy's clients break on an error there.
    """
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk
    except ContextExceeded as error:
        if not error.is_prompt:
            raise
        for index in range(choices):
            yield GenerateChunk(index=index, finish_reason="length")


async def watched(chunks: AsyncGenerator[GenerateChunk, None], watch: Watch) -> AsyncGenerator[GenerateChunk, None]:
    """Yield `chunks` as they come, and let `watch` see them and how they end."""
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                watch.see(chunk)
                yield chunk
    except (GeneratorExit, asyncio.CancelledError):
        watch.left()
        raise
    except Exception:
        watch.failed()
        raise
