"""A body of any content costs bounded memory and time, and one error at most."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
import tracemalloc
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast

import pytest
from fastapi import FastAPI

from lmdeploy.serve.client import TritonClient
from lmdeploy.serve.request import GenerateChunk, GenerateRequest
from lmdeploy.serve.wire import encode_generate
from openai_gateway import parsing
from openai_gateway.app import create_app
from openai_gateway.models import OneModel
from openai_gateway.settings import Settings
from tests.abuse.bodies import BODIES, CHAT, LONGEST, MODEL, Hostile
from tests.support.fake_triton import TOKEN_BYTES

MIB = 2**20
MOST_MEMORY = 100 * MIB
# Of the event loop's own thread, in CPU seconds. The promise is 0.2; ten times that, so that a busy machine
# decides nothing.
MOST_SECONDS = 2.0
MOST_ANSWERED = 4096  # bytes of a refusal


class Engine:
    """Takes any request, as bytes, and answers one word."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        encode_generate(request)
        yield GenerateChunk(text="Yes", finish_reason="stop", input_token_len=1, generate_token_len=1)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    engine_dir = tmp_path_factory.mktemp("engine")
    TOKEN_BYTES.write(engine_dir / "token_bytes.bin")
    settings = Settings(model_name=MODEL, engine_dir=engine_dir)
    made = create_app(settings)
    made.state.gateway.models = OneModel(settings, cast(TritonClient, Engine()))
    return made


@dataclass
class Asked:
    """A response of the application, and the CPU time of the thread that runs its event loop."""

    status: int
    body: bytes
    seconds: float


async def ask(app: FastAPI, path: str, body: bytes) -> Asked:
    """Send one body as the server would."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope: dict[str, Any] = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers}
    scope |= {"scheme": "http", "server": ("test", 80), "client": ("test", 1), "state": {}}
    pending = [{"type": "http.request", "body": body, "more_body": False}]
    asked = Asked(0, b"", 0.0)

    async def receive() -> Any:
        if pending:
            return pending.pop()
        return await asyncio.Future()  # the client waits

    async def send(message: Any) -> None:
        asked.status = message.get("status", asked.status)
        asked.body += message.get("body", b"")

    begin = time.thread_time()
    await app(scope, receive, send)
    asked.seconds = time.thread_time() - begin
    return asked


@pytest.mark.alike(most=34)
@pytest.mark.parametrize("name", BODIES)
async def test_a_body_costs_bounded_memory_and_time(app: FastAPI, name: str) -> None:
    hostile = BODIES[name]
    body = hostile.make()
    assert len(body) <= LONGEST
    gc.collect()
    tracemalloc.start()
    try:
        asked = await ask(app, hostile.path, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    _check(hostile, asked)
    assert peak < MOST_MEMORY
    assert asked.seconds < MOST_SECONDS


def _check(hostile: Hostile, asked: Asked) -> None:
    if not hostile.is_refused:
        assert asked.status == 200, asked.body[:500]
        return
    assert asked.status in (400, 404, 422), asked.body[:500]
    assert len(asked.body) < MOST_ANSWERED
    assert json.loads(asked.body)["error"]["message"]


async def test_long_bodies_are_parsed_alongside_the_event_loop(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_loop: list[bool] = []
    check_size = parsing.check_size

    def noted(body: bytes) -> None:
        on_the_loop.append(threading.current_thread() is threading.main_thread())
        check_size(body)

    monkeypatch.setattr(parsing, "check_size", noted)
    for length in (10, 200_000):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "a" * length}]}
        assert (await ask(app, CHAT, json.dumps(body).encode())).status == 200
    assert on_the_loop == [True, False]


@pytest.mark.parametrize("inside", ['"', "\\", "[", "]", "{", ",", ":", '\\"', '[{,:"'])
def test_marks_within_strings_are_text(inside: str) -> None:
    many = inside * (2 * parsing.MAX_VALUES // len(inside))
    parsing.check_size(json.dumps({"a": many, "b": [1, many[:9]]}).encode())
