"""Generation of a response into a conversation."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from webui.conversation import Outcome, Turn, image_bytes, to_messages
from webui.openai_client import HttpError, OpenAIClient, ServerUnavailable
from webui.settings import Settings

logger = logging.getLogger(__name__)
_MAX_IMAGE_BYTES = 256 * 2**20
_ERRORS = {  # by HTTP status
    401: "The model server wants an API key (--api-key of the page)",
    403: "The API key of the page may not do this",
    429: "The model server has too many requests; press Retry in a while",
    503: "The model server cannot answer now; press Retry in a while",
}


class _Images:
    """The images that are in requests that run, which a request keeps in memory as long as it does."""

    _bytes = 0

    @contextmanager
    def reserved(self, count: int) -> Iterator[None]:
        """Count this many bytes of images while a request runs.

        Raises `ValueError` if there are too many; the text is for the reader of the page.
        """
        if count and self._bytes + count > _MAX_IMAGE_BYTES:
            raise ValueError("Too many images are being looked at now; try again later")
        self._bytes += count
        try:
            yield
        finally:
            self._bytes -= count


_images = _Images()


async def generate_last(server: OpenAIClient, turns: Sequence[Turn], settings: Settings) -> None:
    """Generate the response of the last turn into it. Never raises; how it ended is in the response.

    Cancelling the task that runs this leaves the server's stream, which cancels the request in the engine.
    """
    response, started = turns[-1].response, time.monotonic()
    has_tokens = bool(response.token_ids) or not response.text  # else those of a part would stand for all of it
    try:
        with _images.reserved(image_bytes(turns)):
            async for piece in server.respond(to_messages(settings.system_prompt, turns), settings):
                response.take(piece if has_tokens else replace(piece, token_ids=()), time.monotonic() - started)
        response.context_len = server.context_size(settings.model)
        if response.outcome is Outcome.RUNNING:
            response.outcome, response.error = Outcome.FAILED, "The server ended the response early."
    except asyncio.CancelledError:
        response.outcome = Outcome.STOPPED
    except Exception as error:
        if not isinstance(error, HttpError | ServerUnavailable | ValueError):
            logger.exception("a response failed")
        response.outcome, response.error = Outcome.FAILED, readable(error)


def readable(error: Exception) -> str:
    """Return the page's text for an error."""
    if isinstance(error, ServerUnavailable):
        return "The model server is away. Press Retry when it is back."
    if isinstance(error, ValueError):
        return f"{error}."
    if not isinstance(error, HttpError):
        return f"The model server failed: {error or type(error).__name__}"
    begins = _ERRORS.get(error.status, "The model server refused this" if error.status < 500 else "")
    return f"{begins or 'The model server failed'}: {error.message}"
