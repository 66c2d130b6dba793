"""Guard of the page: keys before bodies, bounds, a policy for browsers, and few routes."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import stat
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from openai_gateway.middleware import body_limit
from openai_gateway.process.connection import ClientTimeouts
from tests.abuse.page import API, EVENT_PATHS, NO_ROUTES, floods
from tests.support.fake_triton import FakeTriton
from tests.support.gateways import running_page
from tests.support.servers import answers
from tests.support.waiting import eventually_sync
from webui import uploads

MIB = 2**20
KEY = "key"


@pytest.fixture(scope="module")
def app() -> ASGIApp:
    from webui.app import create_app

    return create_app("127.0.0.1:1", api_keys=[KEY])


@pytest.fixture(scope="module")
def open_app() -> ASGIApp:
    from webui.app import create_app

    return create_app("127.0.0.1:1")


@pytest.fixture
def http(page_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=page_url, trust_env=False) as client:
        yield client


async def post(app: ASGIApp, path: str, headers: dict[str, str], body: bytes | None, method: str = "POST") -> int:
    """Send a request and return the status of its response; ``body`` None: it must not be asked for."""
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": sent}
    scope |= {"server": ("test", 80), "client": ("test", 1), "state": {}}
    status: list[int] = []

    async def receive() -> Any:
        assert body is not None, "the body is read before a key is shown"
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        status.extend([message["status"]] if "status" in message else [])

    await app(scope, receive, send)
    return status[0]


@pytest.mark.parametrize("path", [*EVENT_PATHS, f"{API}/upload", f"{API}/component_server", f"{API}/cancel"])
@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=x"])
async def test_a_body_is_not_read_before_a_key_is_shown(app: ASGIApp, path: str, kind: str) -> None:
    assert await post(app, path, {"content-type": kind}, None) == 401


@pytest.mark.parametrize("name", floods())
@pytest.mark.parametrize("path", [*EVENT_PATHS, "/login", f"{API}/upload"])
async def test_a_body_costs_bounded_memory_and_time(open_app: ASGIApp, path: str, name: str) -> None:
    body = floods()[name]()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "host": "test"}
    begin = time.thread_time()
    tracemalloc.start()
    try:
        status = await post(open_app, path, headers, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert status in (413, 415, 422)
    assert peak < 100 * MIB
    assert time.thread_time() - begin < 10  # 31 s where the body is parsed


def test_the_bodies_of_all_requests_together_are_bounded(
    http: httpx.Client, page_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_limit, "MAX_WAIT_SECONDS", 0.2)
    host, port = page_url.removeprefix("http://").rstrip("/").split(":")
    lines = [f"POST {EVENT_PATHS[0]} HTTP/1.1", "host: x", "content-type: application/json"]
    head = "\r\n".join([*lines, f"content-length: {8 * MIB}", "", ""])
    clients = [socket.create_connection((host, int(port)), timeout=20) for _ in range(20)]
    try:
        for client in clients:  # none of them ends
            client.sendall(head.encode())
            try:
                client.sendall(bytes(8 * MIB - 1))
            except OSError:
                break  # refused
        rejected = [client.recv(32) for client in select.select(clients, [], [], 180)[0]]
        assert rejected
        assert all(response.startswith(b"HTTP/1.1 503") for response in rejected)
        assert len(rejected) <= 5
    finally:
        for client in clients:
            client.close()
    eventually_sync(lambda: http.post(EVENT_PATHS[0], json={}).status_code == 422)


def test_files_are_bounded_each_and_together(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def upload(*files: bytes) -> httpx.Response:
        return http.post(f"{API}/upload", files=[("files", ("a.png", content)) for content in files])

    assert upload(bytes(uploads.MAX_FILE_BYTES + 1)).status_code == 413
    assert upload(*[b"a"] * 17).status_code == 400
    monkeypatch.setattr(uploads, "MAX_FOLDER_BYTES", 3 * MIB)
    paths = [upload(bytes(MIB)).json()[0] for _ in range(5)]
    assert [uploads.find(path) is not None for path in paths] == [False, False, True, True, True]
    assert [http.get(f"{API}/file={path}").status_code for path in paths] == [404, 404, 200, 200, 200]
    monkeypatch.setattr(uploads, "MAX_FILES", 2)
    later = upload(b"a", b"b").json()
    assert len([file for file in uploads.folder().glob("*/*") if file.is_file()]) == 2
    assert all(map(uploads.find, later))


def test_a_file_of_no_regular_kind_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert uploads.find(str(tmp_path / "file"), tmp_path) == tmp_path / "file"
    for wrong in ("fifo", "link", "loop", "none", ".", "../file", "\0", "a" * 5000, "\ud800"):
        assert uploads.find(f"{tmp_path}/{wrong}", tmp_path) is None
    assert uploads.find("/dev/zero", tmp_path) is None
    assert uploads.find(None, tmp_path) is None


@pytest.mark.parametrize(("method", "path"), [route for route in NO_ROUTES if "?deep_link=" not in route[1]])
def test_routes_that_the_page_does_not_need_are_closed(http: httpx.Client, method: str, path: str) -> None:
    assert http.request(method, path, json={} if method == "POST" else None).status_code in (403, 404, 405)


def test_an_offered_upgrade_leaves_an_event_whole(http: httpx.Client) -> None:
    """The JDK's HttpClient offers one with each POST."""
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAEAAEAA"}
    bare, offering = (http.post(EVENT_PATHS[0], json={"data": []}, headers=headers) for headers in ({}, offer))
    assert (bare.status_code, bare.json()) == (offering.status_code, offering.json()) == (422, bare.json())


def test_a_page_is_not_made_of_what_was_uploaded(http: httpx.Client) -> None:
    state = json.dumps([{"id": 1, "props": {"value": "injected"}}]).encode()
    (path,) = http.post(f"{API}/upload", files=[("files", ("state.json", state))]).json()
    for link in (Path(path).parent.name, f"../{Path(path).parent.name}", path):
        for page in ("/", "/config"):
            assert "injected" not in http.get(page, params={"deep_link": link}).text


def test_another_site_may_not_use_the_page(http: httpx.Client) -> None:
    headers = {"sec-fetch-site": "cross-site", "origin": "https://example.com"}
    event = {"fn_index": 0, "data": [], "session_hash": "a"}
    assert http.post(EVENT_PATHS[0], json=event, headers=headers).status_code == 403
    assert http.get("/config", headers=headers).status_code == 403
    assert http.get("/", headers=headers).status_code == 200  # a link
    shown = http.get("/config", headers={"origin": "https://example.com", "host": "chat.example.com"})
    assert not [name for name in shown.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("path", ["/", "/config", "/theme.css", f"{API}/file=/etc/passwd", "/nothing", f"{API}/upload"])
def test_browsers_may_ask_no_other_host(http: httpx.Client, path: str) -> None:
    policy = http.get(path).headers["content-security-policy"]
    allowed = {words[0]: set(words[1:]) for words in (part.split() for part in policy.split(";"))}
    for directive in ("img-src", "media-src"):
        assert allowed[directive] == {"'self'", "data:", "blob:"}
    assert allowed["connect-src"] == allowed["default-src"] == {"'self'"}
    assert allowed["frame-src"] == allowed["object-src"] == {"'none'"}
    assert not [source for sources in allowed.values() for source in sources if "*" in source or "//" in source]


def test_browsers_keep_assets_whose_names_change_with_their_content(http: httpx.Client) -> None:
    spec = find_spec("gradio")
    assert spec.origin is not None
    names = [path.name for path in Path(spec.origin).parent.glob("templates/frontend/assets/*")]
    assert names
    assert [name for name in names if not re.search(r"-[\w-]{8}\d?\.\w+$", name)] == []
    kept = [http.get(f"/assets/{name}") for name in names[:2]]
    kept.append(http.get(f"/assets/{names[0]}", headers={"range": "bytes=0-9"}))
    assert [response.status_code for response in kept] == [200, 200, 206]
    assert {response.headers["cache-control"] for response in kept} == {"public, max-age=31536000, immutable"}
    for path in ("/", "/config", "/assets/none-12345678.js", "/static/img/logo.svg"):
        assert "immutable" not in http.get(path).headers.get("cache-control", "")


def test_a_client_that_is_silent_is_let_go(fake_triton: FakeTriton) -> None:
    with running_page(fake_triton.address, timeouts=ClientTimeouts(head=0.3, body=0.3)) as url:
        host, port = url.removeprefix("http://").rstrip("/").split(":")
        for sent in (
            b"",
            b"GET / HTTP/1.1\r\nhost: x\r\n",
            b"POST /login HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n",
        ):
            with socket.create_connection((host, int(port)), timeout=180) as client:
                client.sendall(sent)
                assert client.recv(12) in (b"", b"HTTP/1.1 408")


def test_the_folder_of_uploads_is_private_and_goes_with_the_process(fake_triton: FakeTriton, tmp_path: Path) -> None:
    from lmdeploy.serve.ports import free_ports

    (port,) = free_ports(1)
    command = [sys.executable, "-m", "lmdeploy", "serve", "gradio", fake_triton.address, "--server-port", str(port)]
    env = {name: value for name, value in os.environ.items() if name != "GRADIO_TEMP_DIR"} | {"TMPDIR": str(tmp_path)}
    page = subprocess.Popen([*command, "--server-name", "127.0.0.1"], env=env)
    try:
        url = f"http://127.0.0.1:{port}"
        eventually_sync(lambda: answers(url))
        (path,) = httpx.post(f"{url}{API}/upload", files=[("files", ("a.png", b"a"))], trust_env=False).json()
        (folder,) = tmp_path.iterdir()
        assert Path(path).is_relative_to(folder)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        page.terminate()
        page.wait(180)
    assert list(tmp_path.iterdir()) == []
