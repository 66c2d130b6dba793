"""How an answer comes into a conversation."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from lmdeploy.serve.client import TritonRequestError, TritonUnavailable
from webui.conversation import Outcome, Piece, Turn, to_messages
from webui.settings import Settings

logger = logging.getLogger(__name__)


class Server(Protocol):
    """What the page asks: a Triton, or a server with OpenAI's API."""

    def answer(self, messages: Sequence[dict[str, Any]], settings: Settings) -> AsyncIterator[Piece]:
        """Stream the answer to messages.

        Raises
        ------
        TritonUnavailable, TritonRequestError
            The server is away, or refuses the request.
        ValueError
            The settings cannot be used; the text is for the reader of the page.
        """
        ...

    async def models(self) -> list[str]:
        """Return what may answer, the model itself first.

        Raises
        ------
        TritonUnavailable, TritonRequestError
            The server is away, or does not tell.
        """
        ...

    async def is_ready(self) -> bool:
        """Return whether the server answers."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


async def answer_last(server: Server, turns: Sequence[Turn], settings: Settings) -> None:
    """Generate the answer of the last turn into it. Never raises; how it ended is in the answer.

    Cancelling the task that runs this leaves the server's stream, which cancels the request in the engine.
    """
    answer, started = turns[-1].answer, time.monotonic()
    try:
        async for piece in server.answer(to_messages(settings.system_prompt, turns), settings):
            answer.take(piece, time.monotonic() - started)
        if answer.outcome is Outcome.RUNNING:
            answer.outcome, answer.error = Outcome.FAILED, "The server ended the answer early."
    except asyncio.CancelledError:
        answer.outcome = Outcome.STOPPED
    except Exception as error:
        if not isinstance(error, TritonUnavailable | TritonRequestError | ValueError):
            logger.exception("an answer failed")
        answer.outcome, answer.error = Outcome.FAILED, readable(error)


def readable(error: Exception) -> str:
    """Return what a reader of the page should be told about an error."""
    if isinstance(error, TritonUnavailable):
        return "The model server is away. Press Retry when it is back."
    if isinstance(error, ValueError):
        return f"{error}."
    text = error.message if isinstance(error, TritonRequestError) else str(error)
    return f"The model server refused or failed this: {text or type(error).__name__}"
