"""The disk fails, or the process ends, at any step: a batch still ends with one result a request."""

import asyncio
import errno
import json
import os
import sqlite3
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from openai_gateway.app import create_app
from openai_gateway.batches import runner as runner_module
from openai_gateway.batches import store as store_module
from openai_gateway.batches.requests import BatchRequest
from openai_gateway.batches.results import Results
from openai_gateway.batches.runner import BatchRunner
from openai_gateway.batches.store import Limits, Owned, Store
from openai_gateway.batches.work import Dispatch, Slots
from openai_gateway.database import Database
from openai_gateway.endpoints.files.form import FileForm
from openai_gateway.middleware.internal_requests import OpenRequests
from openai_gateway.settings import Settings
from tests.gateway.batches.conftest import contents, jsonl, request
from tests.support.waiting import eventually

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
    assert record is not None
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
    assert record is not None
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
