"""Authentication by API keys."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_gateway import docs_page
from openai_gateway.errors import ApiError
from openai_gateway.middleware.internal_requests import is_internal
from openai_gateway.registry import ADMINISTERED, MONITORING

CALLER = "x-lmdeploy-caller"
"""The header in which a proxy tells a node who calls, by `digest_for_node`; of others it says nothing."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
# Administered paths need an administrator's key instead (`AdminKeys`).
_OPEN_PATHS = frozenset({*docs_page.PATHS, *MONITORING, *ADMINISTERED})


class ApiKeys:
    """ASGI middleware that answers 401 to a request without ``Authorization: Bearer KEY`` or ``x-api-key: KEY``.

    It puts the caller's key into the request's scope, for `key_of`.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], node_key: str | None = None) -> None:
        self._app = app
        self._keys = keys  # any of them will do
        self._node_key = node_key  # the one of them that a proxy shows, which says whose requests it brings (`CALLER`)
        # A caller with a key of this server is the same one through the proxy.
        self._known = {} if node_key is None else {digest_for_node(node_key, key): key for key in keys}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http" or is_internal(scope):  # has a key already, of who made the batch
            await self._app(scope, receive, send)
            return
        guarded, headers = needs_key(scope["path"], scope["method"]), Headers(scope=scope)
        key = matching_key(headers, self._keys) if guarded else None
        if guarded and key is None:
            rejection = ApiError(401, "Please request with valid api key!", code="invalid_api_key")
            await rejection.response(scope["path"])(scope, receive, send)
            return
        scope["lmdeploy.key"] = scope["lmdeploy.shown_key"] = key
        if key is not None and key == self._node_key and _DIGEST.fullmatch(caller := headers.get(CALLER, "")):
            scope["lmdeploy.key"] = self._known.get(caller, caller)
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
    """Return the caller's key; None where no keys are set.

    It says whose sessions, files, responses and cached prompts a request may use. Of a caller behind a proxy whose key
    this server does not have, it is the proxy's digest of the key.
    """
    key: str | None = scope.get("lmdeploy.key")
    return key


def keys_of(scope: Scope) -> tuple[str | None, ...]:
    """Return the keys that give a caller rights: its own and, behind a proxy, the proxy's."""
    return key_of(scope), scope.get("lmdeploy.shown_key")


def digest_for_node(node_key: str, key: str) -> str:
    """Return a caller's identity for nodes of a proxy: the same for each request, and no use without `node_key`."""
    return hmac.new(node_key.encode(), b"caller behind a proxy " + key.encode(), hashlib.sha256).hexdigest()


def caller_of_key(key: str) -> str:
    """Return a name that identifies requests with this key without revealing it."""
    return hmac.new(key.encode(), b"caller", hashlib.sha256).hexdigest()[:16]


def salt_of_key(key: str, salt: str | None) -> str:
    """Return a ``cache_salt`` that only requests with this key and this salt of their own have."""
    return hmac.new(key.encode(), b"salt " + (salt or "").encode(), hashlib.sha256).hexdigest()
