"""Limits of request bodies and of their total memory."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_gateway.errors import ApiError
from openai_gateway.middleware.api_keys import key_of
from openai_gateway.middleware.internal_requests import is_internal
from openai_gateway.registry import FILES
from openai_gateway.shares import Shares

SHORT = 128 * 1024  # bytes of a body that waits for nobody
MAX_WAIT_SECONDS = 30.0  # seconds that a long body may wait for others
_ALONGSIDE_A_FILE = 64 * 1024  # bytes of a form's other fields and its boundaries

_DRAINED = (
    8  # a refused body is read, and dropped, up to this many times the limit, so that the client reads our response
)


class BodyLimit:
    """ASGI middleware that answers 413 to a body that is too long, and 503 to one for which others leave no memory.

    A body is in memory until its response is complete. Short ones always have room. ``max_bytes_in_all``: of all long
    bodies at a time; of those with one API key half of it.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, max_bytes_in_all: int, max_file_bytes: int | None = None) -> None:
        self._app = app
        self._max_bytes = max_bytes  # of a body
        self._max_file_bytes = max_file_bytes  # of a form with a file, which is written to the disk as it comes
        self._shares = Shares(max_bytes_in_all, max_bytes_in_all // 2)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        max_bytes, what = self._max_bytes, "request body"
        if self._max_file_bytes is not None and scope["path"] == FILES:
            max_bytes, what = self._max_file_bytes + _ALONGSIDE_A_FILE, "form with a file"
        error = ApiError(413, f"The {what} is longer than {max_bytes} bytes.")
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > max_bytes:
            await _drain(receive, max_bytes)
            await error.response(scope["path"])(scope, receive, send)
            return
        received, has_share = 0, False
        key, size = key_of(scope), int(declared) if declared.isdigit() else max_bytes
        needs_share = not is_internal(scope) and (self._max_file_bytes is None or scope["path"] != FILES)

        async def counted() -> Message:
            nonlocal received, has_share
            message = await receive()
            received += len(message.get("body", b""))
            if needs_share and not has_share and received > SHORT:  # nothing more is read meanwhile
                try:
                    await self._shares.take(key, size, MAX_WAIT_SECONDS)
                except TimeoutError:
                    raise HTTPException(503, "The server has too many long requests; try again later.") from None
                has_share = True
            if received > max_bytes:
                if message.get("more_body", False):
                    await _drain(receive, max_bytes)
                raise HTTPException(413, error.message)  # the kind FastAPI lets through
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            if has_share:
                self._shares.release(key, size)


async def _drain(receive: Receive, max_bytes: int) -> None:
    dropped = 0
    while dropped <= _DRAINED * max_bytes:
        message = await receive()
        dropped += len(message.get("body", b""))
        if not message.get("more_body", False):
            return
