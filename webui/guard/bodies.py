"""How much of requests' bodies is held at a time, by all of them."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyBudget:
    """ASGI middleware that answers 503 where the bodies of all open requests are longer than `max_bytes` together.

    It counts what has come: who only announces a long body takes nothing from others.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        held = 0

        async def counted() -> Message:
            nonlocal held
            message = await receive()
            length = len(message.get("body", b""))
            held, self._held = held + length, self._held + length
            if self._held > self._max_bytes:
                raise HTTPException(503, "The page is busy with other requests; try again later.", {"retry-after": "1"})
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._held -= held
