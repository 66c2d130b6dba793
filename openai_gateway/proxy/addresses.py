"""Allowed addresses of nodes: a proxy sends its callers' requests there, from where it is in the network."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from lmdeploy.addresses import IP, ip_address, is_public
from openai_gateway.errors import ApiError

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
THIS_MACHINE = "localhost"
_SAME = ("127.0.0.1", "::1", THIS_MACHINE)  # a server that listens on one of them is the same as on another
_PORTS = {"http": 80, "https": 443}
_EXPECTED = "url must be http(s)://HOST:PORT, without a user, a path or a query"


def base_url(url: str, peer: str = THIS_MACHINE) -> str:
    """Return a node's base URL in one form, without a slash at the end; raise `ApiError` if it is no base URL.

    ``peer``: who names it: the host of a server that says that it listens on all addresses (0.0.0.0, [::]).
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _rejection(_EXPECTED) from None
    is_bare = parts.path in ("", "/") and not any(char in url for char in "?#@\\")
    if parts.scheme not in ("http", "https") or not host or not is_bare or port == 0 or not url.isprintable():
        raise _rejection(_EXPECTED)
    address = ip_address(host)
    if address is None and not _NAME.fullmatch(host):
        raise _rejection("url must name a host")
    if address is not None and address.is_unspecified:
        host = peer
    elif address is not None and "%" not in host:
        host = str(address)
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port else "")


def identity_of(url: str) -> tuple[str, int]:
    """Return host and port of a base URL, the same for all names of this machine's loopback: one node has them."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return THIS_MACHINE if host in _SAME else host, parts.port or _PORTS[parts.scheme]


def checked_url(url: str, *, allow_private: bool, from_this_machine: bool, peer: str = THIS_MACHINE) -> str:
    """Return a node's base URL, as `base_url`.

    Raises `ApiError` if it is no base URL, or nodes may not have this address. ``allow_private``: whether it may have a
    private address. ``from_this_machine``: whether it is named by somebody on this machine, who may name this machine.
    ``peer``: who names it.
    """
    url = base_url(url, peer)
    host = urlsplit(url).hostname or ""
    address = ip_address(host)
    if address is None:
        is_allowed = from_this_machine or allow_private or host.lower() != THIS_MACHINE
    else:
        is_here = address.is_loopback and from_this_machine
        is_allowed = is_here or is_allowed_address(address, allow_private=allow_private)
    if not is_allowed:
        raise _rejection("url must not have a private address; a proxy started with --allow-private-nodes takes them")
    return url


def is_allowed_address(address: IP, *, allow_private: bool) -> bool:
    """Return whether nodes may have an address; those of a link or a group, where clouds keep secrets, never."""
    if address.is_link_local or address.is_multicast:
        return False
    return allow_private or is_public(address)


class CheckedResolver(AbstractResolver):
    """Resolves names to addresses that nodes may have, each time one is connected to: a name may change."""

    def __init__(self, *, allow_private: bool, resolver: AbstractResolver | None = None) -> None:
        self._allow_private = allow_private  # whether nodes may have private addresses
        self._resolver = resolver or ThreadedResolver()  # what knows names; None: the system

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a name that may be connected to; raise `OSError` if there is none."""
        found = await self._resolver.resolve(host, port, family)
        allowed = [one for one in found if self._allows(host, one["host"])]
        if not allowed:
            raise OSError(None, f"{host} has no address that a node may have")
        return allowed

    async def close(self) -> None:
        """Let go of the resolver."""
        await self._resolver.close()

    def _allows(self, host: str, found: str) -> bool:
        address = ip_address(found)
        if address is None:
            return False
        is_here = host.lower() == THIS_MACHINE and address.is_loopback
        return is_here or is_allowed_address(address, allow_private=self._allow_private)


def _rejection(message: str) -> ApiError:
    return ApiError(400, message, param="url", code="invalid_value")
