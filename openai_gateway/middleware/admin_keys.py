"""Authentication of administrators, before the body is read."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_gateway.errors import ApiError
from openai_gateway.middleware.api_keys import matching_key
from openai_gateway.registry import ADMINISTERED


class AdminKeys:
    """ASGI middleware that refuses what administrators do without an administrator's key."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], *, has_api_keys: bool) -> None:
        self._app = app
        self._keys = keys  # any of them will do; empty: nobody may
        self._has_keys = has_api_keys or bool(keys)  # callers need keys too

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        endpoint = ADMINISTERED.get(scope["path"]) if scope["type"] == "http" else None
        rejection = None
        if endpoint and scope["method"] == endpoint.method and (self._has_keys or not endpoint.is_open):
            rejection = self._rejection(endpoint.administers, Headers(scope=scope))  # other methods: 405
        if rejection is None:
            await self._app(scope, receive, send)
        else:
            await rejection.response(scope["path"])(scope, receive, send)

    def _rejection(self, what: str, headers: Headers) -> ApiError | None:
        if not self._keys:
            message = f"{what} by administrators; start the server with --admin-keys."
            return ApiError(403, message, code="forbidden")
        if matching_key(headers, self._keys) is None:
            message = f"{what} with one of the --admin-keys."
            return ApiError(401, message, code="invalid_api_key")
        return None
