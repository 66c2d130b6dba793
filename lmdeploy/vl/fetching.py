"""Image download from allowed hosts, never from this network, within limits of bytes and time.

The address that was checked is the one connected to, so that a name cannot mean another one a moment later.
"""

import contextlib
import http.client
import os
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

from lmdeploy.addresses import ip_address, is_public

_CHUNK = 1 << 16
_REDIRECTS = (301, 302, 303, 307, 308)
_DEFAULT_SECONDS = 10.0


@dataclass(frozen=True)
class FetchRules:
    """Limits on downloads."""

    hosts: tuple[str, ...] | None = None  # names of hosts, exactly; ``*`` among them is any; None: nothing is fetched
    # Whether a host may be in this network: loopback, private, link-local and other addresses of no use outside
    allows_private: bool = False
    max_bytes: int = 20_000_000  # most bytes of a response
    seconds: float = _DEFAULT_SECONDS  # time for all of it, redirects included
    max_redirects: int = 3  # how often a response may lead elsewhere; every place must be allowed


def default_seconds() -> float:
    """Return ``LMDEPLOY_FETCH_TIMEOUT``, or what is the default."""
    given = os.environ.get("LMDEPLOY_FETCH_TIMEOUT", "")
    try:
        return max(0.001, float(given)) if given else _DEFAULT_SECONDS
    except ValueError:
        raise ValueError(f"LMDEPLOY_FETCH_TIMEOUT must be a number of seconds, got {given!r}") from None


def fetch(url: str, rules: FetchRules) -> bytes:
    """Download a URL.

    Raises `ValueError` if the rules forbid it, nobody answers in time, or the response is none or too long.
    """
    deadline = time.monotonic() + rules.seconds
    for _ in range(rules.max_redirects + 1):
        response = _get(url, rules, deadline)
        if isinstance(response, bytes):
            return response
        url = urljoin(url, response)
    raise ValueError(f"the image's URL leads elsewhere more than {rules.max_redirects} times")


def _get(url: str, rules: FetchRules, deadline: float) -> bytes | str:
    """Return the body, or where the response leads to."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise ValueError(f"the image's URL is none: {error}") from None
    if parts.scheme not in ("http", "https") or not host or parts.username is not None:
        raise ValueError("the image's URL must begin with http:// or https:// and a host, without a user's name")
    if rules.hosts is None or not ("*" in rules.hosts or host in rules.hosts):
        raise ValueError(
            f"images are not fetched from {host}: it is not among the allowed hosts (--allowed-media-domains)"
        )
    port = port or (443 if parts.scheme == "https" else 80)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = _Connection(host, port, _addresses(host, port, rules), parts.scheme == "https", deadline)
    watch = threading.Timer(rules.seconds, connection.abort)
    watch.daemon = True
    watch.start()
    try:
        connection.request("GET", path, headers={"User-Agent": "lmdeploy", "Accept": "image/*"})
        response = connection.getresponse()
        if response.status in _REDIRECTS and response.headers.get("Location"):
            return str(response.headers["Location"])
        if response.status != 200:
            raise ValueError(f"{host} answered {response.status} for the image")
        body = _body(response, rules)
        left(deadline)  # else the response may have been cut off
        return body
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        is_late = isinstance(error, TimeoutError) or time.monotonic() >= deadline
        reason = "no response in time" if is_late else " ".join(str(error).split())[:120]
        raise ValueError(f"the image cannot be fetched from {host}: {reason or type(error).__name__}") from error
    finally:
        watch.cancel()
        connection.close()


def _addresses(host: str, port: int, rules: FetchRules) -> list[str]:
    """Return the addresses of a host; all of them must be allowed."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"the image cannot be fetched from {host}: no such host") from error
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for text in addresses:
        address = ip_address(text)
        if not rules.allows_private and (address is None or not is_public(address)):
            raise ValueError(f"images are not fetched from {host}: it is in a private network; send it as a data URL")
    return addresses


class _Connection(http.client.HTTPConnection):
    """A connection to one of the addresses that were checked; the host's name is only said, and proved by TLS."""

    def __init__(self, host: str, port: int, addresses: list[str], is_tls: bool, deadline: float) -> None:
        super().__init__(host, port)
        self._addresses, self._is_tls, self._deadline = addresses, is_tls, deadline

    def connect(self) -> None:
        error: OSError = TimeoutError()
        for address in self._addresses:
            try:
                self.sock = socket.create_connection((address, self.port), timeout=left(self._deadline))
            except OSError as failure:
                error = failure
                continue
            if self._is_tls:
                self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)
            return
        raise error

    def abort(self) -> None:
        """End what is going on; from any thread."""
        if self.sock is not None:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


def left(deadline: float) -> float:
    """Return the seconds up to a deadline. Raises ``TimeoutError`` when there are none."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _body(response: http.client.HTTPResponse, rules: FetchRules) -> bytes:
    body = bytearray()
    while piece := response.read1(_CHUNK):
        body += piece
        if len(body) > rules.max_bytes:
            raise ValueError(f"an image's file must have at most {rules.max_bytes} bytes, got more")
    return bytes(body)
