"""Refuse request bodies that are too long, before they fill the memory."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_gateway.errors import ApiError
from openai_gateway.registry import FILES

_ALONGSIDE_A_FILE = 64 * 1024  # bytes of a form's other fields and its boundaries

_DRAINED = (
    8  # a refused body is read, and dropped, up to this many times the limit, so that the client reads our response
)


class BodyLimit:
    """ASGI middleware that answers 413 to a body longer than `max_bytes`; one that is a file has its own limit."""

    def __init__(self, app: ASGIApp, max_bytes: int, max_file_bytes: int | None = None) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_file_bytes = max_file_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most, what = self._max_bytes, "request body"
        if self._max_file_bytes is not None and scope["path"] == FILES:
            most, what = self._max_file_bytes + _ALONGSIDE_A_FILE, "form with a file"
        error = ApiError(413, f"The {what} is longer than {most} bytes.")
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > most:
            await _drain(receive, most)
            await error.response(scope["path"])(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                if message.get("more_body", False):
                    await _drain(receive, most)
                raise HTTPException(413, error.message)  # the kind FastAPI lets through
            return message

        await self._app(scope, counted, send)


async def _drain(receive: Receive, most: int) -> None:
    dropped = 0
    while dropped <= _DRAINED * most:
        message = await receive()
        dropped += len(message.get("body", b""))
        if not message.get("more_body", False):
            return
