"""A body of any content costs bounded memory and time, and one error at most."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import tracemalloc
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from lmdeploy.serve.client import TritonClient
from lmdeploy.serve.request import GenerateChunk, GenerateRequest
from lmdeploy.serve.wire import encode_generate
from openai_gateway import parsing
from openai_gateway.app import ROUTERS, create_app
from openai_gateway.errors import ApiError
from openai_gateway.models import OneModel
from openai_gateway.settings import Settings
from tests.abuse.bodies import BODIES, CHAT, MAX_BYTES, MODEL, Hostile
from tests.abuse.texts import SAMPLES
from tests.support.fake_triton import TOKEN_BYTES

MIB = 2**20
MAX_MEMORY = 100 * MIB
# Of the event loop's own thread, in CPU seconds. The promise is 0.2; ten times that, so that a busy machine
# decides nothing.
MAX_SECONDS = 2.0
MAX_REPLY_BYTES = 4096  # bytes of a refusal


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
class Answer:
    """A response of the application, and the CPU time of the thread that runs its event loop."""

    status: int
    body: bytes
    seconds: float


async def post(app: FastAPI, path: str, body: bytes, key: str | None = None) -> Answer:
    """Send one body as the server would; with a key, as if it had been found right."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope: dict[str, Any] = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers}
    scope |= {"scheme": "http", "server": ("test", 80), "client": ("test", 1), "state": {}, "lmdeploy.key": key}
    pending = [{"type": "http.request", "body": body, "more_body": False}]
    answer = Answer(0, b"", 0.0)

    async def receive() -> Any:
        if pending:
            return pending.pop()
        return await asyncio.Future()  # the client waits

    async def send(message: Any) -> None:
        answer.status = message.get("status", answer.status)
        answer.body += message.get("body", b"")

    begin = time.thread_time()
    await app(scope, receive, send)
    answer.seconds = time.thread_time() - begin
    return answer


@pytest.mark.alike(max_cases=17)
@pytest.mark.parametrize("name", BODIES)
async def test_a_body_costs_bounded_memory_and_time(app: FastAPI, name: str) -> None:
    hostile = BODIES[name]
    body = hostile.make()
    assert len(body) <= MAX_BYTES
    gc.collect()
    tracemalloc.start()
    try:
        answer = await post(app, hostile.path, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    _check(hostile, answer)
    assert peak < MAX_MEMORY
    assert answer.seconds < MAX_SECONDS


def _check(hostile: Hostile, answer: Answer) -> None:
    if not hostile.is_rejected:
        assert answer.status == 200, answer.body[:500]
        return
    assert answer.status in (400, 404, 422), answer.body[:500]
    assert len(answer.body) < MAX_REPLY_BYTES
    assert json.loads(answer.body)["error"]["message"]


async def test_long_bodies_are_parsed_in_another_process(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    here: list[int] = []
    check_size = parsing.check_size

    def recorded(body: bytes) -> None:
        here.append(len(body))
        check_size(body)

    monkeypatch.setattr(parsing, "check_size", recorded)
    for length in (10, 200_000):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "a" * length}]}
        assert (await post(app, CHAT, json.dumps(body).encode())).status == 200
    assert [length > parsing.SHORT for length in here] == [False]


@pytest.mark.parametrize("path", SAMPLES)
def test_a_body_means_the_same_when_it_is_long(app: FastAPI, path: str) -> None:
    annotation = next(
        route.body_field.field_info.annotation
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and route.path == path and route.body_field is not None
    )
    for fields in (SAMPLES[path], {"model": 5}, {"model": "m", "messages": 1, "n": 0}):
        raw = json.dumps(fields | {"unknown": "a" * parsing.SHORT}).encode()
        assert _outcome(parsing.parse_isolated, raw, annotation) == _outcome(parsing.parse, raw, annotation)


def _outcome(parse: Callable[[bytes, Any], Any], raw: bytes, annotation: Any) -> Any:
    try:
        value = parse(raw, annotation)
        return value if isinstance(value, dict) else (value, value.model_fields_set)
    except parsing.RejectedBody as rejected:
        return vars(rejected.reported), rejected.body
    except ApiError as error:
        return vars(error)


async def test_long_bodies_of_one_key_do_not_delay_those_of_another(
    app: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []

    def recorded(raw: bytes, annotation: Any) -> Any:
        parsed.append(json.loads(raw)["messages"][0]["name"])
        raise ApiError(400, "refused")

    monkeypatch.setattr(parsing, "parse_isolated", recorded)
    content = "a" * parsing.SHORT
    bodies = [
        (name, json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content, "name": name}]}).encode())
        for name in [*["ann"] * 8, "bob", "bob"]
    ]
    assert {
        response.status for response in await asyncio.gather(*(post(app, CHAT, body, key) for key, body in bodies))
    } == {400}
    assert sorted(parsed) == ["ann"] * 8 + ["bob"] * 2
    assert parsed[:5].count("bob") == 2


@pytest.mark.parametrize("inside", ['"', "\\", "[", "]", "{", ",", ":", '\\"', '[{,:"'])
def test_marks_within_strings_are_text(inside: str) -> None:
    many = inside * (2 * parsing.MAX_VALUES // len(inside))
    parsing.check_size(json.dumps({"a": many, "b": [1, many[:9]]}).encode())
