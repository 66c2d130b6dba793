"""Nothing that is sent to the chat page makes it read what is not its own, hang, fail, or grow."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from lmdeploy.serve.ports import free_ports
from tests.abuse.bodies import Sent
from tests.abuse.page import API, PATHS, file_requests, floods, page_requests
from tests.support.fake_triton import FakeTriton
from tests.support.gateways import running_page
from tests.support.processes import memory
from tests.support.samples import one_in
from tests.support.servers import answers
from tests.support.waiting import eventually_sync

SECONDS = 60.0  # for one request


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with FakeTriton() as fake, running_page(fake.address) as address:
        yield address


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, trust_env=False, timeout=SECONDS) as client:
        yield client


def send(http: httpx.Client, request: Sent) -> tuple[int, str]:
    """Return the status and the text of the response; of a queued event, with what came of it."""
    response = http.request(request.method, request.path, content=request.make(), headers=request.headers)
    text = response.text
    if request.path.endswith("/queue/join") and response.status_code == 200:
        session = json.loads(request.make())["session_hash"]
        text += http.get(f"{API}/queue/data", params={"session_hash": session}).text
    return response.status_code, text


def _kind_of(request: Sent) -> tuple[str, str]:
    return request.name, request.path


def test_no_field_of_any_event_reads_a_file_or_asks_a_host(
    http: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, all_cases: bool
) -> None:
    from gradio import processing_utils  # takes seconds, here in one process
    from gradio.utils import get_upload_folder

    hosts: list[str] = []

    async def record(url: str, cache_dir: str) -> str:
        hosts.append(url)
        return str(tmp_path / "secret.txt")

    monkeypatch.setattr(processing_utils, "async_ssrf_protected_download", record)
    word = secrets.token_hex(16)
    secret = tmp_path / "secret.png"
    secret.write_text(word)
    config = http.get("/config").json()
    leaks = []
    paths = [str(secret), "/etc/passwd", "/proc/self/environ", "https://example.com/image.png", f"file://{secret}"]
    requests = list(file_requests(config, paths))
    assert len(requests) > 3000
    for request in requests if all_cases else one_in(10, requests, _kind_of):
        status, text = send(http, request)
        if word in text or f"{get_upload_folder()}/" in text or "root:" in text:
            leaks.append((request.name, request.path, json.loads(request.make()), status))
    assert leaks == []
    assert hosts == []
    kept = [file for file in Path(get_upload_folder()).rglob("*") if file.is_file()]
    assert [file for file in kept if word in file.read_text(errors="replace")] == []
    assert [file for file in kept if file.name in ("passwd", "environ")] == []


@pytest.mark.parametrize("kind", ["fifo", "/dev/zero"])
def test_a_special_file_holds_nothing_up(kind: str, http: httpx.Client, tmp_path: Path) -> None:
    path = kind
    if kind == "fifo":
        path = str(tmp_path / "fifo.png")
        os.mkfifo(path)
    config = http.get("/config").json()
    for request in file_requests({**config, "dependencies": config["dependencies"][:14]}, [path]):
        status, _ = send(http, request)
        assert status < 500
    assert http.get(f"{API}/file={path}").status_code == 404


def test_every_other_attack_is_refused_and_none_is_a_failure(http: httpx.Client, *, all_cases: bool) -> None:
    config = http.get("/config").json()
    wrong = []
    requests = [request for request in page_requests(config, PATHS[:1]) if not request.name.startswith("a file in")]
    for request in requests if all_cases else one_in(48, requests, _kind_of):
        status, text = send(http, request)
        if status >= 500 or (status == 200 and not request.may_be_served) or "Traceback" in text:
            wrong.append((status, request.name, request.method, request.path, text[:200], request.make()[:300]))
    assert wrong == []


def test_a_flood_leaves_the_memory_as_it_was(*, all_cases: bool) -> None:
    """The page in its own process, under long bodies and long conversations from several clients at a time."""
    fake, (port,) = FakeTriton(), free_ports(1)
    command = [sys.executable, "-m", "lmdeploy", "serve", "gradio", fake.address, "--server-port", str(port)]
    page = subprocess.Popen([*command, "--server-name", "127.0.0.1"])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            eventually_sync(lambda: answers(f"{http.base_url}/config"))
            config = http.get("/config").json()
            names = (*floods(), "a long conversation")
            chosen = [request for request in page_requests(config, PATHS[:1]) if request.name in names]
            assert len(chosen) > 80
            if not all_cases:
                chosen = list(one_in(12, chosen, lambda request: request.name))
            _flood(http, chosen[: len(chosen) // 2])  # what is imported once stays
            before = memory(page.pid, "VmRSS")
            waits = _flood(http, chosen)
            assert max(waits) < 30
            assert memory(page.pid, "VmHWM") - before < 500
            eventually_sync(lambda: memory(page.pid, "VmRSS") - before < 64)
    finally:
        page.terminate()
        page.wait(180)
        fake.stop()


def _flood(http: httpx.Client, requests: Sequence[Sent]) -> list[float]:
    """Send requests, four at a time, and return how long a reader waited for the page meanwhile, in seconds."""

    def status_of(request: Sent) -> int:
        return http.request(request.method, request.path, content=request.make(), headers=request.headers).status_code

    waits = []
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(status_of, request) for request in requests]
        while not all(task.done() for task in sent):
            begin = time.monotonic()
            assert http.get("/theme.css").status_code == 200
            waits.append(time.monotonic() - begin)
            time.sleep(0.05)
    assert {task.result() for task in sent} <= {200, 413, 415, 422, 503}
    return waits
