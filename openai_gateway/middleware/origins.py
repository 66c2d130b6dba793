"""Cross-origin check of browsers' requests to a server without keys."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_gateway.errors import ApiError

_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class Origins:
    """ASGI middleware that answers 403 to what a page of an origin that is not allowed asks a server to do.

    CORS keeps such a page from reading responses. But without asking first a browser sends what a form could hold, for
    example a file to ``/v1/files``. ``allowed``: origins, as of ``--allow-origins``; the server's own is always
    allowed.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str]) -> None:
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http" or scope["method"] in _READING or self._allows(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        message = "Web pages of this origin may not call; start the server with --allow-origins ORIGIN, or with keys."
        await ApiError(403, message, code="forbidden").response(scope["path"])(scope, receive, send)

    def _allows(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        return origin is None or not self._allowed.isdisjoint((origin, "*")) or is_same_origin(headers)


def is_same_origin(headers: Headers) -> bool:
    """Return whether a request's ``Origin`` is the server it is sent to."""
    try:
        return urlsplit(headers.get("origin", "")).netloc == headers.get("host")
    except ValueError:
        return False
