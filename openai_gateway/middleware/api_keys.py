"""Keys that clients need."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_gateway import docs_page
from openai_gateway.errors import ApiError
from openai_gateway.middleware.own_requests import is_own
from openai_gateway.registry import ADMINISTERED, MONITORING

# Administered paths need an administrator's key instead (`AdminKeys`).
_OPEN_PATHS = frozenset({*docs_page.PATHS, *MONITORING, *ADMINISTERED})


class ApiKeys:
    """ASGI middleware that answers 401 to a request without ``Authorization: Bearer KEY`` or ``x-api-key: KEY``.

    It puts the key into the request's scope, for `key_of`.

    Parameters
    ----------
    keys : sequence of str
        Any of them will do.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if is_own(scope):  # has a key already, of who made the batch
            await self._app(scope, receive, send)
            return
        guarded = scope["type"] == "http" and needs_key(scope["path"], scope["method"])
        key = matching_key(Headers(scope=scope), self._keys) if guarded else None
        if guarded and key is None:
            refusal = ApiError(401, "Please request with valid api key!", code="invalid_api_key")
            await refusal.response(scope["path"])(scope, receive, send)
            return
        scope["lmdeploy.key"] = key
        await self._app(scope, receive, send)


def needs_key(path: str, method: str) -> bool:
    """Return whether a request needs a key, where there are any; a browser's question about CORS brings none."""
    return path not in _OPEN_PATHS and method != "OPTIONS"


def matching_key(headers: Headers, keys: Iterable[str]) -> str | None:
    """Return the key of ``Authorization: Bearer KEY``, else of ``x-api-key: KEY``, if it is one of `keys`."""
    scheme, _, key = headers.get("authorization", f"Bearer {headers.get('x-api-key', '')}").partition(" ")
    given = key.strip().encode("latin-1", errors="replace")
    # Every key is compared, each in a time that does not depend on where it differs.
    matches = [known for known in keys if hmac.compare_digest(given, known.encode())]
    return matches[0] if matches and scheme.lower() == "bearer" else None


def key_of(scope: Scope) -> str | None:
    """Return the key a request came with; None where no keys are set."""
    key: str | None = scope.get("lmdeploy.key")
    return key


def caller_of_key(key: str) -> str:
    """Return a name that identifies requests with this key without revealing it."""
    return hmac.new(key.encode(), b"caller", hashlib.sha256).hexdigest()[:16]


def salt_of_key(key: str, salt: str | None) -> str:
    """Return a ``cache_salt`` that only requests with this key and this salt of their own have."""
    return hmac.new(key.encode(), b"salt " + (salt or "").encode(), hashlib.sha256).hexdigest()
