"""Chunks on their way to an endpoint, seen by the gateway's figures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from lmdeploy.serve.client import GenerateChunk
from openai_gateway.metrics.answers import Watch


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
