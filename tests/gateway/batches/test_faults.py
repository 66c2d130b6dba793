"""Batches after crashes, kills and full disks: no row is lost, and none is there twice."""

import asyncio
import errno
import json
import os
import re
import signal
import sqlite3
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI

from lmdeploy.serve.ports import free_ports
from openai_gateway.app import create_app
from openai_gateway.batches import runner as runner_module
from openai_gateway.batches import store as store_module
from openai_gateway.batches.requests import BatchRequest, InvalidRequest, error_line
from openai_gateway.batches.results import Results, ResultsError
from openai_gateway.batches.runner import BatchRunner
from openai_gateway.batches.store import Limits, Owned, Store
from openai_gateway.batches.work import Dispatch, Slots
from openai_gateway.database import Database
from openai_gateway.endpoints.files.form import FileForm
from openai_gateway.middleware.internal_requests import OpenRequests
from openai_gateway.settings import Settings
from tests.gateway.batches.conftest import contents, jsonl, request, results, wait_for
from tests.support.commands import Command
from tests.support.fake_triton import FakeTriton, Received, Script
from tests.support.processes import children
from tests.support.waiting import eventually, eventually_sync

MIB = 2**20
REQUESTS = 20


class Crash(BaseException):
    """Ends whatever runs, as the end of a process does."""


class Crashing(Database):
    """Crashes once: before, in or after its nth transaction."""

    def __init__(self, folder: Path, at: int, moment: str) -> None:
        super().__init__(folder / "records.sqlite", store_module._SCHEMA)
        self._at, self._moment = at, moment
        self.calls = 0

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        moment = self._moment if self.calls == self._at else ""
        self.calls += 1
        if moment == "before":
            raise Crash
        with super().transaction() as records:
            yield records
            if moment == "within":
                raise Crash
        if moment == "after":
            raise Crash


def owned_with_batch(store: Store) -> tuple[Owned, str]:
    owned = store.of(None)
    path = owned.new_file()
    path.write_bytes(
        jsonl(*(request(f"request {n}", **({"method": "PUT"} if n % 5 == 0 else {})) for n in range(REQUESTS)))
    )
    file = owned.keep(path.name, "requests", 3600)
    made = owned.add_batch(
        endpoint="/v1/chat/completions", input_file_id=file.id, hours=1, metadata=None, results_seconds=3600
    )
    return owned, made.id


async def run(store: Store, owned: Owned, batch_id: str) -> Counter[str]:
    """Run a batch to its end; return what was asked how often."""
    requested = Counter[str]()

    async def respond(request: BatchRequest) -> httpx.Response:
        await asyncio.sleep(0)
        requested[request.custom_id] += 1
        return httpx.Response(200, content=b'{"object":"chat.completion"}')

    def asking(key: str | None) -> Dispatch:
        return respond

    runner = BatchRunner(store, (), Slots(4, OpenRequests()), asking, MIB)
    runner.start()
    try:
        await eventually(lambda: not store.waiting())
    finally:
        await runner.stop()
    record = owned.batch(batch_id)
    assert record.status == "completed"
    assert record.request_counts.model_dump() == {"total": REQUESTS, "completed": 16, "failed": 4}
    return requested


@pytest.mark.parametrize("moment", ["before", "within", "after"])
@pytest.mark.parametrize("at", range(6))
async def test_a_crash_at_any_transaction_leaves_a_batch_that_can_be_ended(
    at: int, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, Limits(MIB, MIB, 10))
    owned, batch_id = owned_with_batch(store)
    crashing = Crashing(tmp_path, at, moment)
    monkeypatch.setattr(store, "of", lambda key: Owned(crashing, tmp_path / "everybody", store.limits))
    requested = await run(store, owned, batch_id)
    assert crashing.calls > at
    record = owned.batch(batch_id)
    outputs = [name or "" for name in (record.output_file_id, record.error_file_id)]
    found = [json.loads(line)["custom_id"] for name in outputs for line in owned.content(name).read_text().splitlines()]
    assert sorted(found) == sorted(f"request {n}" for n in range(REQUESTS))
    assert set(requested.values()) == {1}
    assert {file.id for file in owned.files()} == contents(tmp_path) == {record.input_file_id, *outputs}


def test_a_result_that_the_disk_takes_half_of_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Results(tmp_path / "out", tmp_path / "errors")
    line = b'{"id":"batch_req-1","custom_id":"a","response":null,"error":null}\n'
    written.add(1, line, is_error=False)
    really = os.write
    full: Iterator[Callable[[int, bytes], int]] = iter((lambda file, content: really(file, content[:20]), _full))
    monkeypatch.setattr(os, "write", lambda file, content: next(full)(file, content))
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / 'out'}'"):
        written.add(2, line.replace(b"-1", b"-2"), is_error=False)
    assert written.done == {1}
    assert (tmp_path / "out").read_bytes() == line
    written.close()


def _full(*_: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_batch_waits_for_space_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, Limits(MIB, MIB, 10))
    owned, batch_id = owned_with_batch(store)
    monkeypatch.setattr(runner_module, "_PAUSE", 0.01)
    really = os.write
    writes = iter([really, really, _full, _full])
    monkeypatch.setattr(os, "write", lambda file, content: next(writes, really)(file, content))
    await run(store, owned, batch_id)
    assert next(writes, None) is None


def test_records_that_do_not_fit_on_the_disk_are_reported_so_and_change_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "some.sqlite", "PRAGMA max_page_count=8; CREATE TABLE IF NOT EXISTS a (b);")
    with database.transaction() as records:
        records.execute("INSERT INTO a VALUES (1)")

    def fill() -> None:
        with database.transaction() as records:
            records.execute("DELETE FROM a")
            records.execute("INSERT INTO a VALUES (zeroblob(100000))")

    with pytest.raises(OSError, match="is full") as failed:
        fill()
    assert failed.value.errno == errno.ENOSPC
    with database.transaction() as records:
        assert records.execute("SELECT b FROM a").fetchall() == [(1,)]


async def post_file(app: FastAPI, size: int) -> tuple[int, dict[str, Any], int]:
    """Upload this many bytes; return the status, the response, and how many bytes were read."""
    chunk = b"x" * (64 * 1024)
    head = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    head += b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    scope: dict[str, Any] = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST"}
    scope |= {"path": "/v1/files", "raw_path": b"/v1/files", "query_string": b"", "root_path": "", "state": {}}
    scope |= {"headers": [(b"content-type", b"multipart/form-data; boundary=b")], "scheme": "http"}
    scope |= {"server": ("test", 80), "client": ("test", 1)}
    sent, status, body = 0, 0, b""

    async def receive() -> Any:
        nonlocal sent
        first, sent = sent == 0, sent + len(chunk)
        if sent > size:
            return {"type": "http.request", "body": b"\r\n--b--\r\n", "more_body": False}
        return {"type": "http.request", "body": head + chunk if first else chunk, "more_body": True}

    async def send(message: Any) -> None:
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")

    await app(scope, receive, send)
    return status, json.loads(body), sent


async def test_an_upload_never_lies_in_memory_as_a_whole(tmp_path: Path) -> None:
    app = create_app(Settings(files_dir=tmp_path))
    await post_file(app, MIB)
    tracemalloc.start()
    try:
        status, response, _ = await post_file(app, 64 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (status, response["bytes"]) == (200, 64 * MIB)
    assert peak < 8 * MIB


async def test_an_upload_that_is_refused_is_read_to_its_end_so_that_its_client_reads_why(tmp_path: Path) -> None:
    app = create_app(Settings(files_dir=tmp_path, max_key_bytes=MIB))
    assert (await post_file(app, MIB))[0] == 200
    status, response, read = await post_file(app, 32 * MIB)
    assert (status, response["error"]["code"]) == (403, "quota_exceeded")
    assert read > 32 * MIB
    assert len(contents(tmp_path)) == 1


async def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(Settings(files_dir=tmp_path))
    monkeypatch.setattr(FileForm, "_on_part_data", _full)
    status, response, _ = await post_file(app, MIB)
    assert (status, response["error"]["message"]) == (507, "The server's disk is full.")
    assert contents(tmp_path) == set()


RESUME_REQUESTS, WRONG = 400, 40  # every 40th request is wrong
FIRST = 200  # requests that the engine answers before somebody is killed


def question(received: Received) -> int:
    """Return the number of the request that a request is of."""
    found = re.search(r"question (\d+)", received.inputs["messages"])
    return int(found[1])


def gateway(fake: FakeTriton, folder: Path, port: int, workers: int) -> Command:
    where = ["--triton-address", fake.address, "--server-name", "127.0.0.1", "--server-port", str(port)]
    return Command("serve", "gateway", *where, "--files-dir", str(folder), "--workers", str(workers))


def runner(parent: int, folder: Path) -> list[int]:
    """Return which of a command's workers has the lock of the folder."""
    return [pid for pid in children(parent) if folder / "lock" in open_paths(pid)]


def open_paths(pid: int) -> set[Path]:
    return {link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_a_batch_that_is_killed_half_way_resumes_without_loss_or_doubles(
    fake: FakeTriton, tmp_path: Path, workers: int
) -> None:
    (port,) = free_ports(1)
    answered: list[int] = []

    def until_half(received: Received) -> Script:
        if len(answered) >= FIRST:
            return Script(hold_after=0)
        answered.append(question(received))
        return Script(texts=(f"answer {question(received)}",))

    def all_of_them(received: Received) -> Script:
        return Script(texts=(f"answer {question(received)}",))

    fake.script = until_half
    requests = [
        request(f"request {n}", f"question {n}", **({"method": "PUT"} if n % WRONG == 0 else {}))
        for n in range(RESUME_REQUESTS)
    ]
    base_url = f"http://127.0.0.1:{port}/v1"
    with ExitStack() as stack, openai.OpenAI(base_url=base_url, api_key="none", max_retries=5) as client:

        def completed() -> int:
            counts = client.batches.retrieve(made.id).request_counts
            return 0 if counts is None else counts.completed

        command = stack.enter_context(gateway(fake, tmp_path, port, workers))
        command.wait_for("OpenAI API")
        file = client.files.create(file=("requests.jsonl", jsonl(*requests)), purpose="batch")
        made = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        eventually_sync(lambda: completed() == FIRST)
        before = set(answered)
        if workers == 1:
            command.end(signal.SIGKILL)
        else:
            (pid,) = runner(command.process.pid, tmp_path)
            os.kill(pid, signal.SIGKILL)  # another worker continues
        fake.reset()
        fake.script = all_of_them
        if workers == 1:
            command = stack.enter_context(gateway(fake, tmp_path, port, workers))
            command.wait_for("OpenAI API")
        done = wait_for(client, made.id, 60)
        output, errors = results(client, done.output_file_id), results(client, done.error_file_id)
    assert done.status == "completed"
    wrong = {f"request {n}" for n in range(0, RESUME_REQUESTS, WRONG)}
    assert errors.keys() == wrong
    assert output.keys() == {f"request {n}" for n in range(RESUME_REQUESTS)} - wrong
    for number in set(range(RESUME_REQUESTS)) - set(range(0, RESUME_REQUESTS, WRONG)):
        message = output[f"request {number}"]["response"]["body"]["choices"][0]["message"]
        assert message["content"] == f"answer {number}"
    again = [question(received) for received in fake.requests]
    assert len(again) == len(set(again)) == RESUME_REQUESTS - len(wrong) - FIRST
    assert before.isdisjoint(again)


def test_half_a_result_is_cut_off_and_its_row_is_open_again(tmp_path: Path) -> None:
    output, errors = tmp_path / "out.jsonl", tmp_path / "errors.jsonl"
    lines = [error_line("batch_req_7", InvalidRequest(n, f"request {n}", ""), "code", "why") for n in range(1, 5)]
    written = Results(output, errors)
    for number, line in enumerate(lines[:3], 1):
        written.add(number, line, is_error=number == 3)
    written.close()
    for torn in (lines[3][:-1], lines[3][:20], lines[3][:3], b"\0" * 100):
        whole = output.read_bytes()
        output.write_bytes(whole + torn)
        again = Results(output, errors)
        assert (again.done, again.completed, again.failed) == ({1, 2, 3}, 2, 1)
        assert output.read_bytes() == whole
        again.close()
    assert [json.loads(line)["custom_id"] for line in output.read_bytes().splitlines()] == ["request 1", "request 2"]


def test_a_file_that_holds_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    output = tmp_path / "precious.txt"
    for content in (b"my diary\n", b"half a line", b'{"id":"chatcmpl-1"}\n'):
        output.write_bytes(content)
        with pytest.raises(ResultsError, match="holds something else than results of a batch"):
            Results(output, tmp_path / "errors.jsonl")
        assert output.read_bytes() == content
