"""Attacks on the proxy and the Ray ingress beyond their API: heads, paths, hosts, floods.

`proxy_requests` and `ray_requests` list them as bytes for a socket, and `responses` sends one. None has a key, so none
may be answered with success. With a key (`Attack.with_key`) some are proper requests, but still none may reach another
server than the one it is sent to (`trap` is one), or another path than those that are served.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace

from tests.support.http_host import Host, Reply, running_host

LONG = 8 * 2**20  # bytes, the default of --max-body-bytes
_PAUSE = 0.5  # seconds after a response in which the server may send another, where it does not close
_HELLO = [{"role": "user", "content": "a"}]


@dataclass(frozen=True)
class Attack:
    """Bytes that somebody sends.

    ``name``: what it tries; ``sent``: the request, or several; ``connections``: on how many connections at a time: more
    than one is a flood; ``is_unfinished``: the request never ends: a response has to come before its body has;
    ``leaves``: the client closes its connections a moment after it has sent, and reads nothing.
    """

    name: str
    sent: bytes
    connections: int = 1
    is_unfinished: bool = False
    leaves: bool = False

    def with_key(self, key: str) -> Attack:
        """Return the same with a right key."""
        line = f" HTTP/1.1\r\nAuthorization: Bearer {key}\r\n".encode()
        return replace(self, sent=self.sent.replace(b" HTTP/1.1\r\n", line))


# Request targets that name another host, `{other}`, or leave the path they begin with.
TARGETS = {
    "a host after two slashes": "//{other}/secret",
    "a host after three slashes": "///{other}/secret",
    "a host after a slash and a backslash": "/\\{other}/secret",
    "a host after two backslashes": "\\\\{other}/secret",
    "a host after encoded slashes": "/%2f{other}/secret",
    "a host after slashes encoded twice": "/%252f%252f{other}/secret",
    "a host after a slash and an encoded backslash": "/%5c{other}/secret",
    "the absolute form": "http://{other}/secret",
    "the absolute form of another scheme": "file:///etc/passwd",
    "the absolute form with a user": "http://user:password@{other}/secret",
    "userinfo": "/@{other}/secret",
    "userinfo without a path": "@{other}/secret",
    "userinfo after two slashes": "//user@{other}/secret",
    "the form of CONNECT": "{other}",
    "a path that is left": "/v1/models/../../secret",
    "a path that is left in code": "/v1/models/%2e%2e/%2e%2e/secret",
    "a path that is left through slashes in code": "/v1/models/..%2f..%2fsecret",
    "a path that is left by backslashes": "/v1/models/..\\..\\secret",
    "a path that is left to a host": "/v1/models/..//{other}/secret",
    "a parameter in a segment": "/v1/models;@{other}/secret",
    "a line end in code": "/v1/models%0d%0aHost:%20{other}",
    "a zero in code": "/v1/models%00//{other}/secret",
    "a blank in code": "/v1/models%20HTTP/1.1%0d%0aHost:%20{other}%0d%0a%0d%0aGET%20/secret",
    "a fragment": "/v1/models#//{other}/secret",
    "a question mark in code": "/v1/models%3f@{other}/secret",
    "a path that is not served": "/secret",
    "the server's own administration": "/-/routes/../../secret",
}

# Further lines of the head, for a request of a proper path.
HEADS = {
    "another host": "Host: {other}",
    "a host with a path": "Host: localhost/v1/files?",
    "a host with userinfo": "Host: localhost@{other}",
    "a host with half an address": "Host: [",
    "a host with a port that is none": "Host: localhost:99999",
    "an empty host": "Host:",
    "two hosts": "Host: localhost\r\nHost: {other}",
    "a forwarded host": "Host: localhost\r\nX-Forwarded-Host: {other}\r\nForwarded: host={other};for=127.0.0.1",
    "a forwarded client": "Host: localhost\r\nX-Forwarded-For: 127.0.0.1\r\nX-Real-IP: 127.0.0.1",
    "another URL": "Host: localhost\r\nX-Original-URL: http://{other}/secret\r\nX-Rewrite-URL: //{other}/secret",
    "an upgrade": "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    "an upgrade to HTTP/2": "Host: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    "HTTP2-Settings: AAMAAABk",
    "headers for the next server": "Host: localhost\r\nConnection: authorization, host\r\nTE: trailers",
    "a wrong key": "Host: localhost\r\nAuthorization: Bearer wrong",
    "a key of another scheme": "Host: localhost\r\nAuthorization: Basic d3Jvbmc6d3Jvbmc=",
    "a key that is no ASCII": "Host: localhost\r\nAuthorization: Bearer \xff\xfe",
    "two keys": "Host: localhost\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b",
    "a long key": "Host: localhost\r\nAuthorization: Bearer " + 30_000 * "a",
    "many lines": "Host: localhost\r\n" + "\r\n".join(f"x-{number}: a" for number in range(2000)),
}

# Two lengths, or none: what one server takes for a body, another could take for the next request, with a secret path.
_SMUGGLED = "GET /secret HTTP/1.1\r\nHost: localhost\r\n\r\n"
SMUGGLED = {
    "a length and chunks": f"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{_SMUGGLED}",
    "two lengths": f"Content-Length: 0\r\nContent-Length: {len(_SMUGGLED)}\r\n\r\n{_SMUGGLED}",
    "chunks in disguise": f"Content-Length: 4\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{_SMUGGLED}",
    "a length that is no number": f"Content-Length: +4\r\n\r\n0\r\n\r\n{_SMUGGLED}",
    "a negative length": f"Content-Length: -1\r\n\r\n{_SMUGGLED}",
}


def ray_requests(other: str, model: str = "m") -> list[Attack]:
    """Return attacks on the ingress of an application on Ray that asks for keys.

    ``other``: ``HOST:PORT`` of a server that no request may reach; ``model``: the name of the served model.
    """
    return [*_anywhere(other, model, "/v1/chat/completions"), *_without_a_key("/v1/chat/completions", model)]


def gateway_attacks(other: str, model: str = "m") -> list[Attack]:
    """Return attacks on a gateway that asks for keys; as `ray_requests`."""
    unfinished = _request("POST", "/v1/chat/completions", "x: " + 60_000 * "a")[:-4]
    return [*ray_requests(other, model), Attack("heads without an end", unfinished, connections=500, leaves=True)]


def proxy_requests(other: str, model: str = "m") -> list[Attack]:
    """Return attacks on a proxy that asks for keys; as `ray_requests`."""
    made = [*_anywhere(other, model, "/v1/chat/completions"), *_without_a_key("/v1/chat/completions", model)]
    node = json.dumps({"url": f"http://{other}", "status": {"models": [model]}}).encode()
    for name, lines in (
        ("a name that was rebound", "Host: attacker.example:8000\r\nOrigin: http://attacker.example:8000"),
        ("a name that was rebound, without an origin", "Host: attacker.example"),
        ("a page of another origin", "Host: localhost\r\nOrigin: http://attacker.example"),
        ("a page without an origin", "Host: localhost\r\nOrigin: null"),
        ("a client that another proxy names", "Host: localhost\r\nX-Forwarded-For: 127.0.0.1"),
        ("a client that RFC 7239 names", "Host: localhost\r\nForwarded: for=127.0.0.1"),
        ("an address in a name", "Host: 127.0.0.1.attacker.example"),
        ("userinfo before an address", "Host: localhost@attacker.example"),
        ("two hosts", "Host: localhost\r\nHost: attacker.example"),
        ("no host", "Host:"),
        ("a wrong key", "Host: attacker.example\r\nAuthorization: Bearer wrong"),
    ):
        head = f"{lines}\r\nContent-Type: application/json\r\nContent-Length: {len(node)}"
        made.append(Attack(f"a node added by {name}", _request("POST", "/nodes/add", head, node)))
        removed = f"/nodes/remove?node_url=http://{other}"
        made.append(Attack(f"a node removed by {name}", _request("POST", removed, f"{lines}\r\nContent-Length: 0")))
    unread = f"Host: attacker.example\r\nContent-Type: application/json\r\nContent-Length: {LONG}"
    made.append(Attack("a node in a body that never comes", _request("POST", "/nodes/add", unread), is_unfinished=True))
    return made


def _anywhere(other: str, model: str, path: str) -> Iterator[Attack]:
    """Yield attempts to reach another server or another path."""
    for name, target in TARGETS.items():
        for method in ("GET", "POST"):
            head = "Host: localhost" + ("\r\nContent-Length: 0" if method == "POST" else "")
            yield Attack(f"{method} {name}", _request(method, target.format(other=other), head))
    body = _chat(model)
    for name, lines in HEADS.items():
        head = f"{lines.format(other=other)}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        yield Attack(name, _request("POST", path, head, body))
    for name, rest in SMUGGLED.items():
        yield Attack(name, f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{rest}".encode())
    for method in ("CONNECT", "TRACE", "PROPFIND", "get", "G" * 5000):
        yield Attack(f"the method {method[:9]}", _request(method, path, "Host: localhost"))


def _without_a_key(path: str, model: str) -> Iterator[Attack]:
    """Yield bodies that must not be read, as nobody has shown a key, and floods."""
    body = _chat(model)
    json_head = "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    yield Attack("a body that never comes", _request("POST", path, json_head + str(LONG)), is_unfinished=True)
    # The ingress has to read neither of these, and to parse neither.
    lists = b'{"messages":[' + b"[]," * (LONG // 3 - 10) + b"[]]}"
    yield Attack("a body of lists", _request("POST", path, json_head + str(len(lists)), lists))
    deep = b'{"messages":' + b"[" * 900 + b"]" * 900 + b"}"
    yield Attack("a deep body", _request("POST", path, json_head + str(len(deep)), deep))
    yield Attack("many connections", _request("POST", path, json_head + str(len(body)), body), connections=64)
    kept = f"Connection: keep-alive\r\n{json_head}{len(body)}"
    yield Attack("many requests on a connection", 100 * _request("POST", path, kept, body))
    yield Attack("a question about CORS with a body", _request("OPTIONS", path, json_head + str(len(lists)), lists))


def _chat(model: str) -> bytes:
    return json.dumps({"model": model, "messages": _HELLO, "max_tokens": 1}).encode()


def _request(method: str, target: str, head: str, body: bytes = b"") -> bytes:
    closing = "" if "Connection:" in head else "\r\nConnection: close"
    return f"{method} {target} HTTP/1.1\r\n{head}{closing}\r\n\r\n".encode("latin-1") + body


def responses(port: int, attack: Attack, timeout: float = 10.0) -> list[int]:
    """Send an attack to a port of this machine, and return the statuses of all responses; none where it hung up."""
    return [status for received in received_by(port, attack, timeout) for status in statuses_in(received)]


def received_by(port: int, attack: Attack, timeout: float = 10.0) -> list[bytes]:
    """Send an attack to a port of this machine, and return all that came on each of its connections."""
    if attack.leaves:
        _send_and_leave(port, attack, timeout)
        return [b""] * attack.connections
    with ThreadPoolExecutor(attack.connections) as pool:
        return list(pool.map(lambda _: _received(port, attack, timeout), range(attack.connections)))


def statuses_in(received: bytes) -> list[int]:
    """Return the statuses of the responses that came on a connection."""
    lines = [line for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.")]
    return [int(line.split()[1]) for line in lines]


def _received(port: int, attack: Attack, timeout: float) -> bytes:
    received = b""
    with suppress(ConnectionError, TimeoutError), socket.create_connection(("127.0.0.1", port), timeout) as sock:
        sender = threading.Thread(target=_send, args=(sock, attack))
        sender.start()
        try:
            while piece := sock.recv(65536):
                received += piece
                sock.settimeout(_PAUSE)
                if attack.is_unfinished and b"\r\n\r\n" in received:
                    break
        finally:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sender.join()
    return received


def _send_and_leave(port: int, attack: Attack, timeout: float) -> None:
    with ExitStack() as open_:
        for _ in range(attack.connections):
            with suppress(OSError):
                _send(open_.enter_context(socket.create_connection(("127.0.0.1", port), timeout)), attack)
        time.sleep(_PAUSE)


def _send(sock: socket.socket, attack: Attack) -> None:
    with suppress(OSError):  # a server that refuses a long body may close before it has read it
        sock.sendall(attack.sent)


def trap() -> AbstractContextManager[Host]:
    """Serve a secret, with success, to whoever comes; its `visits` say who did."""
    return running_host(lambda _: Reply(b"a secret"))
