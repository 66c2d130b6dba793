"""Security headers of the page."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY = {
    "default-src": "'self'",
    "script-src": "'self' 'unsafe-eval'",  # Gradio makes functions of the events' JavaScript
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "media-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "connect-src": "'self'",
    "worker-src": "'self' blob:",
    "frame-src": "'none'",
    "object-src": "'none'",
    "base-uri": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'self'",
}
_HEADERS = {
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-dns-prefetch-control": "off",
}
POLICY = "content-security-policy"


def policy(nonce: str = "") -> str:
    """Return the Content-Security-Policy of a response.

    The model writes Markdown and HTML into the page. Whatever it names there, the browser asks no other host for it,
    and it runs no script but those of the page's own files, and those with the nonce.
    """
    scripts = _POLICY["script-src"] + (f" 'nonce-{nonce}'" if nonce else "")
    return "; ".join(f"{directive} {sources}" for directive, sources in (_POLICY | {"script-src": scripts}).items())


class Headers:
    """ASGI middleware that adds them to every response; one may have its own policy."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault(POLICY, policy())
            await send(message)

        await self._app(scope, receive, with_headers)
