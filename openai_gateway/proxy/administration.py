"""Authorization of node administration: whoever adds a node reads the requests sent there."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from lmdeploy.addresses import ip_address
from openai_gateway.errors import ApiError
from openai_gateway.middleware.api_keys import matching_key
from openai_gateway.proxy.addresses import THIS_MACHINE
from openai_gateway.proxy.settings import ProxySettings

NODE_PATHS = ("/nodes/add", "/nodes/remove")
# Whoever passes a request on adds one of these; then the peer of the connection is not who asks.
_OF_ANOTHER_PROXY = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class NodeAdministrators:
    """ASGI middleware that refuses to add and remove nodes, before a body is read, unless an administrator asks.

    That is who shows one of ``--admin-keys``; where there are none, a program on this machine. A web page is not one,
    even where a browser on this machine sends its requests: neither one of another origin, nor one whose name was made
    to mean this machine (DNS rebinding), which its ``Host`` shows.
    """

    def __init__(self, app: ASGIApp, settings: ProxySettings) -> None:
        self._app = app
        self._keys = settings.admin_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        is_guarded = scope["type"] == "http" and scope["path"] in NODE_PATHS
        rejection = self._rejection(scope) if is_guarded else None
        if rejection is None:
            await self._app(scope, receive, send)
        else:
            await rejection.response(scope["path"])(scope, receive, send)

    def _rejection(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        if self._keys:
            if matching_key(headers, self._keys) is None:
                message = "Nodes are registered with one of the proxy's --admin-keys."
                return ApiError(401, message, code="invalid_api_key")
            return None
        if not is_here(scope) or _is_of_another_site(headers):
            message = (
                "Nodes are registered from the proxy's own machine, by its IP address or as localhost, unless it is "
                "started with --admin-keys."
            )
            return ApiError(403, message, code="forbidden")
        return None


def is_here(scope: Scope) -> bool:
    """Return whether a program on this machine asks itself, not one that passes on what others ask."""
    headers = Headers(scope=scope)
    address = ip_address(scope["client"][0]) if scope["client"] else None
    return address is not None and address.is_loopback and not any(name in headers for name in _OF_ANOTHER_PROXY)


def _is_of_another_site(headers: Headers) -> bool:
    """Return whether a web page makes a browser on this machine ask."""
    hosts, origin = headers.getlist("host"), headers.get("origin")
    if len(hosts) != 1 or not _is_numeric_or_local(hosts[0]):
        return True
    return origin is not None and urlsplit(origin).netloc != hosts[0]


def _is_numeric_or_local(host: str) -> bool:
    """Return whether a ``Host`` header holds an IP address or localhost, to which no domain can be rebound."""
    try:
        parts = urlsplit(f"//{host}")
        name, _ = parts.hostname, parts.port
    except ValueError:
        return False
    return parts.netloc == host and name is not None and (name == THIS_MACHINE or ip_address(name) is not None)
