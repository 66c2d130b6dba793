"""Clients that stay silent, that never end, and that never read: they are let go, and what they held is free."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import aiohttp
import httpx
import openai
import pytest

from openai_gateway.docs_page import PATHS
from openai_gateway.process import connection
from openai_gateway.process.connection import MAX_HEAD, MAX_HEADERS, ClientTimeouts
from openai_gateway.proxy.settings import ProxySettings
from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import running_gateway, running_proxy
from tests.support.metrics import open_requests
from tests.support.waiting import eventually_sync

REPLY = "The capital of France is Paris."
SHORT = 0.3  # seconds; what tests wait for has 60
PROMPT = 1.5  # seconds for what a test sends as soon as it is connected, on a busy machine
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "stream": True}).encode()


@pytest.fixture(scope="module")
def fake() -> Iterator[FakeTriton]:
    with FakeTriton(MODEL) as made:
        yield made


@contextmanager
def connected(url: str, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    with socket.socket() as client:
        if receive_buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.settimeout(60)
        host, _, port = url.removeprefix("http://").partition(":")
        client.connect((host, int(port)))
        yield client


def all_of(client: socket.socket) -> bytes:
    """Return the server's bytes until it closes the connection."""
    received = b""
    while piece := client.recv(65536):
        received += piece
    return received


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"\r\n\r\n\r\n"])
def test_a_connection_that_never_speaks_is_closed(fake: FakeTriton, sent: bytes) -> None:
    timeouts = ClientTimeouts(head=SHORT)
    with running_gateway(Settings(triton_address=fake.address), timeouts=timeouts) as url, connected(url) as client:
        client.sendall(sent)
        assert all_of(client) == b""


def test_a_connection_that_falls_silent_after_a_request_is_closed(fake: FakeTriton) -> None:
    with running_gateway(Settings(triton_address=fake.address), timeouts=ClientTimeouts(head=PROMPT)) as url:
        for further in (b"\r\n", b"GET /hea"):
            with connected(url) as client:
                client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                first = client.recv(65536)
                assert first.startswith(b"HTTP/1.1 200")
                client.sendall(further)
                rest = all_of(client)
                assert rest == b"" if further == b"\r\n" else rest.startswith(b"HTTP/1.1 408")


def test_a_connection_without_a_request_is_closed(fake: FakeTriton) -> None:
    timeouts = ClientTimeouts(idle=PROMPT)
    with running_gateway(Settings(triton_address=fake.address), timeouts=timeouts) as url, connected(url) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert all_of(client).startswith(b"HTTP/1.1 200")


async def test_clients_close_their_idle_connections_before_the_gateway_does() -> None:
    """Else a request crosses with the closing, and is lost."""
    client = openai.AsyncOpenAI(base_url="http://localhost", api_key="none")
    pool = client._client._transport._pool  # type: ignore[attr-defined]
    async with client, aiohttp.TCPConnector() as proxy:
        assert max(pool._keepalive_expiry, proxy._keepalive_timeout) < ClientTimeouts().idle


def test_a_head_that_never_ends_is_refused(fake: FakeTriton) -> None:
    settings = Settings(triton_address=fake.address)
    with running_gateway(settings, timeouts=ClientTimeouts(head=PROMPT)) as url, connected(url) as client:
        client.sendall(HEAD + b"x-more: ")
        assert all_of(client).startswith(b"HTTP/1.1 408")
    with running_gateway(settings) as url, connected(url) as client:
        endless = HEAD + (b"x-more: " + b"a" * 1000 + b"\r\n") * 70
        client.sendall(endless[: MAX_HEAD + 1])  # not more: what is not read when a connection is closed resets it
        response = all_of(client)
        assert response.startswith(b"HTTP/1.1 431")
        assert str(MAX_HEAD).encode() in response


@pytest.mark.parametrize("declared", [b"content-length: 99\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n2\r\n{"])
def test_a_body_that_never_ends_gives_its_place_back(fake: FakeTriton, declared: bytes) -> None:
    settings = Settings(triton_address=fake.address, max_requests=1)
    with running_gateway(settings, timeouts=ClientTimeouts(body=SHORT)) as url, connected(url) as client:
        client.sendall(HEAD + declared)
        response = all_of(client)
        head, _, body = response.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408")
        assert json.loads(body)["error"]["message"] == "The request did not come in time."
        eventually_sync(lambda: open_requests(url) == 0)
        assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 200


def test_a_client_that_takes_its_time_within_the_limits_is_served(fake: FakeTriton) -> None:
    fake.reset()
    with running_gateway(Settings(triton_address=fake.address)) as url, connected(url) as client:
        request = HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
        for begin in range(0, len(request), 7):
            client.sendall(request[begin : begin + 7])
        assert b"data: [DONE]" in all_of(client)


def test_a_response_longer_than_the_deadlines_of_its_request_is_not_cut(fake: FakeTriton) -> None:
    fake.reset()
    fake.script = Script(hold_after=1, resume=True)
    timeouts = ClientTimeouts(head=PROMPT, body=PROMPT, write=PROMPT)
    with running_gateway(Settings(triton_address=fake.address), timeouts=timeouts) as url, connected(url) as client:
        client.sendall(HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY)
        assert client.recv(1) == b"H"
        silent = threading.Event()
        threading.Timer(1.2 * PROMPT, silent.set).start()  # every deadline passes meanwhile
        silent.wait()
        fake.release.set()
        assert b"data: [DONE]" in all_of(client)


def test_a_reader_that_never_reads_is_cut_off(fake: FakeTriton) -> None:
    fake.reset()
    fake.script = Script(texts=["word " * 1000] * 5_000)  # 25 MB: more than the sockets hold
    timeouts = ClientTimeouts(write=SHORT)
    settings = Settings(triton_address=fake.address, max_requests=1)
    with running_gateway(settings, timeouts=timeouts) as url, connected(url, 4096) as client:
        client.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
        eventually_sync(lambda: bool(fake.requests))
        (request,) = fake.requests
        assert fake.stops.get(timeout=180) == request.id
        eventually_sync(lambda: open_requests(url) == 0)
        assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 200


# Heads of each POST of the JDK's HttpClient, unless it is set to HTTP/1.1 only.
JAVA = (
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
    b"http2-settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\n"
)


@pytest.mark.parametrize(
    "framing", [b"content-length: %d\r\n\r\n%s", b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"]
)
@pytest.mark.parametrize(("size", "of_proxy"), [(1, False), (60, False), (10_000, False), (60, True)])
def test_an_offered_upgrade_leaves_the_request_whole(
    fake: FakeTriton, url: str, framing: bytes, size: int, of_proxy: bool
) -> None:
    request = HEAD + JAVA + framing % (len(BODY), BODY)
    with running_proxy(ProxySettings()) if of_proxy else nullcontext(url) as server, connected(server) as client:
        if of_proxy:
            assert httpx.post(f"{server}/nodes/add", json={"url": url}, trust_env=False).status_code == 200
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2):  # the connection stays usable
            for i in range(0, len(request), size):
                client.sendall(request[i : i + size])
            received = b""
            while not received.endswith(b"\r\n0\r\n\r\n"):  # the end of the body may come in a piece of its own
                received += (piece := client.recv(65536))
                assert piece, received
            assert received.startswith(b"HTTP/1.1 200 ")
            assert b"data: [DONE]" in received
        client.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n" + JAVA + b"\r\n")
        assert b"HTTP/1.1 200 " in client.recv(65536)


@pytest.mark.parametrize("of_proxy", [False, True])
def test_head_is_get_without_a_body(url: str, of_proxy: bool) -> None:
    with running_proxy(ProxySettings()) if of_proxy else nullcontext(url) as server:
        paths = [*PATHS, *(path for path, methods in description(server).items() if "get" in methods)]
        for path in [path.replace("{model}", MODEL) for path in paths]:
            reference = httpx.get(server + path, trust_env=False)
            with connected(server) as client:
                client.sendall(b"HEAD %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % path.encode())
                head, _, body = all_of(client).partition(b"\r\n\r\n")
            assert (head.split()[1], body) == (b"%d" % reference.status_code, b""), path
            assert b"content-length: " in head
        rejected = httpx.put(f"{server}/v1/models", trust_env=False)
        assert rejected.headers["allow"] == "GET, HEAD"


def description(server: str) -> dict[str, Any]:
    paths: dict[str, Any] = httpx.get(f"{server}/openapi.json", trust_env=False).json()["paths"]
    return paths


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_of_http_1_0_gets_no_chunks(url: str, stream: bool) -> None:
    body = json.dumps(json.loads(BODY) | {"stream": stream}).encode()
    with connected(url) as client:
        client.sendall(HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + b"content-length: %d\r\n\r\n%s" % (len(body), body))
        head, _, received = all_of(client).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert (b"content-length" in head) == (not stream)
    if not stream:
        assert json.loads(received)["choices"][0]["message"]["content"] == REPLY
        return
    lines = received.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    deltas = [json.loads(line.removeprefix("data: "))["choices"][0]["delta"] for line in lines[:-2]]
    assert "".join(delta.get("content") or "" for delta in deltas) == REPLY


def test_a_head_with_too_many_headers_is_refused(url: str) -> None:
    with connected(url) as client:
        client.sendall(HEAD + b"a:\r\n" * MAX_HEADERS + b"\r\n")
        assert all_of(client).startswith(b"HTTP/1.1 431")


def test_unfinished_heads_of_all_connections_together_are_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_UNFINISHED_HEADS", 100_000)
    head = HEAD + b"x: " + b"a" * 40_000
    with connected(url) as one, connected(url) as two, connected(url) as three:
        for client in (one, two, three):
            client.sendall(head)
        assert all_of(three).startswith(b"HTTP/1.1 503")
        # A head in one piece is served meanwhile, and afterwards there is room again.
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 200
    with connected(url) as again:
        again.sendall(head)
        again.sendall(b"\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(BODY) + BODY)
        assert all_of(again).startswith(b"HTTP/1.1 200")


def test_a_new_connection_takes_the_place_of_the_one_idle_for_longest(fake: FakeTriton) -> None:
    fake.reset()
    fake.script = Script(hold_after=1, resume=True)
    with running_gateway(Settings(triton_address=fake.address), max_connections=3) as url, connected(url) as busy:
        busy.sendall(HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY)
        eventually_sync(lambda: len(fake.requests) == 1)
        with connected(url) as first, connected(url) as second, connected(url) as third:
            assert first.recv(1) == b""
            second.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert second.recv(100).startswith(b"HTTP/1.1 200")
            third.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert third.recv(100).startswith(b"HTTP/1.1 200")
        fake.release.set()
        assert b"[DONE]" in all_of(busy)
