"""Authentication of the page, before the body is read."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

# Paths that a browser needs for the form that asks for a key.
_OPEN_PATHS = frozenset({"/", "/login", "/theme.css", "/manifest.json", "/favicon.ico"})
_OPEN_FOLDERS = ("/assets/", "/static/")
_MAX_TOKENS = 10_000  # of those who showed a key; the oldest must show it again


class Keys:
    """ASGI middleware that answers 401 to who has shown no key, and 403 to a request that another site makes."""

    def __init__(self, app: ASGIApp, gradio_app: Any) -> None:
        self._app = app
        self._gradio = gradio_app  # its form asks for keys (``auth``), and it gives a token to who has shown one
        self._cookies = tuple(f"access-token-{kind}{gradio_app.cookie_id}" for kind in ("", "unsecure-"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] == "http" and (rejection := self._rejection(scope)) is not None:
            await rejection(scope, receive, send)
            return
        await self._app(scope, receive, send)
        tokens = self._gradio.tokens
        while len(tokens) > _MAX_TOKENS:
            del tokens[next(iter(tokens))]

    def _rejection(self, scope: Scope) -> JSONResponse | None:
        headers, path = Headers(scope=scope), scope["path"]
        if path.startswith(_OPEN_FOLDERS) or (path in _OPEN_PATHS and scope["method"] != "POST"):
            return None
        if headers.get("sec-fetch-site") == "cross-site":
            return JSONResponse({"detail": "Another site may not use this page."}, 403)
        if self._gradio.auth is None or path in _OPEN_PATHS:
            return None
        shown = cookie_parser(headers.get("cookie", ""))
        if any(shown.get(name) in self._gradio.tokens for name in self._cookies):
            return None
        return JSONResponse({"detail": "Show an API key of this server first."}, 401)
