"""Refuse request bodies that are too long, before they fill the memory."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_gateway.errors import ApiError

_DRAINED = (
    8  # a refused body is read, and dropped, up to this many times the limit, so that the client reads our answer
)


class BodyLimit:
    """ASGI middleware that answers 413 to a body longer than `max_bytes`."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > self._max_bytes:
            await self._drain(receive)
            await self._error().response(scope["path"])(scope, receive, send)
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                if message.get("more_body", False):
                    await self._drain(receive)
                raise HTTPException(413, self._error().message)  # the kind FastAPI lets through
            return message

        await self._app(scope, counted, send)

    async def _drain(self, receive: Receive) -> None:
        dropped = 0
        while dropped <= _DRAINED * self._max_bytes:
            message = await receive()
            dropped += len(message.get("body", b""))
            if not message.get("more_body", False):
                return

    def _error(self) -> ApiError:
        return ApiError(413, f"The request body is longer than {self._max_bytes} bytes.")
