"""Requests whose clients or workers are gone are cancelled in the engine."""

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from lmdeploy.serve.client import GenerateRequest, TritonClient
from lmdeploy.serve.errors import TritonRequestError
from openai_gateway.process import ledger as module
from openai_gateway.process.ledger import Ledger, cancel_requests, open_requests
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script
from tests.support.metrics import measurement
from tests.support.waiting import eventually

HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Log records, also of uvicorn, whose loggers do not propagate."""
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def errors(logged: pytest.LogCaptureFixture) -> list[str]:
    """Return errors of the gateway; gRPC also logs those of the scripted Triton."""
    records = (record for record in logged.records if record.name.startswith(("uvicorn", "openai_gateway")))
    return [record.getMessage() for record in records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_first_token_is_cancelled_in_the_engine(
    url: str, triton: FakeTriton, route: str, stream: bool, logged: pytest.LogCaptureFixture
) -> None:
    triton.script = Script(hold_after=0)
    prompt = {"messages": HELLO} if route.startswith("chat") else {"prompt": "Hello"}
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        asking = asyncio.create_task(http.post(f"/v1/{route}", json={"model": MODEL, "stream": stream, **prompt}))
        await eventually(lambda: bool(triton.requests))
        asking.cancel()
        left = re.compile(rf'lmdeploy_gateway_requests_total{{[^}}]*/v1/{route}[^}}]*status="(\d+)"')

        async def is_over() -> bool:
            return left.findall((await http.get("/metrics")).text) == ["499"]

        await eventually(is_over)
    await eventually(lambda: not triton.stops.empty())
    assert triton.stops.get() == triton.requests[0].id
    assert await asyncio.to_thread(triton.requests[0].cancelled.wait, 180)
    assert errors(logged) == []


async def test_complete_responses_cancel_nothing(url: str, triton: FakeTriton) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        for stream in (False, True):
            await http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO, "stream": stream})
        await http.get("/health")
    assert triton.stops.empty()


@pytest.mark.parametrize("sent", ["two requests", "half a request"])
async def test_a_client_that_leaves_is_no_error_of_the_server(
    url: str, triton: FakeTriton, sent: str, logged: pytest.LogCaptureFixture
) -> None:
    triton.script = Script(texts=["word "] * 3000)
    body = json.dumps({"model": MODEL, "messages": HELLO, "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    request = head + b"content-length: %d\r\n\r\n" % len(body) + body
    address = urlsplit(url)

    async def until_open(count: int) -> None:
        def is_so() -> bool:
            return measurement(f"{url}/metrics", "lmdeploy_gateway_requests_open") == count + 1  # and the one that asks

        await eventually(lambda: asyncio.to_thread(is_so))

    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    if sent == "two requests":
        writer.write(2 * request)
        await reader.readuntil(b"data: ")
    else:
        writer.write(request[:-10])
        await until_open(1)
    writer.transport.abort()
    await until_open(0)
    assert errors(logged) == []


async def test_a_request_is_listed_for_as_long_as_the_engine_may_be_at_work_on_it(
    fake: FakeTriton, tmp_path: Path
) -> None:
    path = tmp_path / "ledger"
    async with TritonClient(fake.address, Ledger(path)) as client:
        whole, left, rejected = (GenerateRequest(text_input="hello", stream=True) for _ in range(3))
        async for _ in client.generate(whole):
            assert open_requests(path) == {whole.request_id}
        assert open_requests(path) == set()
        fake.script = Script(fail_after=0)
        with pytest.raises(TritonRequestError):
            await anext(client.generate(rejected))
        fake.script = Script(hold_after=1)
        response = client.generate(left)
        await anext(response)
        assert left.request_id in open_requests(path)
        await response.aclose()
        await eventually(lambda: open_requests(path) == set())
    assert left.request_id in {fake.stops.get(timeout=180), fake.stops.get(timeout=180)}


def test_requests_of_a_worker_that_is_gone_are_cancelled(fake: FakeTriton, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    for name in ("one", "two", "three"):
        ledger.begin(name)
    ledger.end("two")
    cancel_requests(fake.address, open_requests(path))
    assert {fake.stops.get(timeout=180), fake.stops.get(timeout=180)} == {"one", "three"}
    fake.stop()
    cancel_requests(fake.address, {"one"})  # Triton is gone too


def test_the_file_does_not_grow_with_what_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_LEN", 1000)
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    ledger.begin("long")
    for number in range(1000):
        ledger.begin(f"{number}")
        ledger.end(f"{number}")
        assert path.stat().st_size < 1100
    assert open_requests(path) == {"long"}
    assert open_requests(tmp_path / "nowhere") == set()
