"""Who may say which nodes there are: whoever does reads every request that is sent there."""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import Request

from openai_gateway.errors import ApiError
from openai_gateway.middleware.api_keys import matching_key
from openai_gateway.proxy.addresses import address_of
from openai_gateway.proxy.settings import ProxySettings


def check_administrator(request: Request, settings: ProxySettings) -> None:
    """Let a request through that has an administrator's key; where none is set, one from this machine.

    Raises
    ------
    ApiError
        It is neither.
    """
    if settings.admin_keys:
        if matching_key(request.headers, settings.admin_keys) is None:
            raise ApiError(401, "Nodes are registered with one of the proxy's --admin-keys.", code="invalid_api_key")
    elif not is_here(request) or _is_of_another_site(request):
        message = "Nodes are registered from the proxy's own machine, unless it is started with --admin-keys."
        raise ApiError(403, message, code="forbidden")


def is_here(request: Request) -> bool:
    """Return whether a request comes from this machine."""
    address = address_of(request.client.host) if request.client else None
    return address is not None and address.is_loopback


def _is_of_another_site(request: Request) -> bool:
    """Return whether a page of another site makes the browser ask, which runs on this machine too."""
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host")
