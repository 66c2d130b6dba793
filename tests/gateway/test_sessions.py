"""Whose a conversation is: nobody continues with, cancels or ends what another key began."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from openai_gateway.errors import one_line
from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import running_gateway
from tests.support.waiting import eventually

TURN = {"prompt": "Hello", "interactive_mode": True}
END = {"prompt": "", "request_output_len": 0, "interactive_mode": False}


@pytest.fixture
def fake() -> Iterator[FakeTriton]:
    made = FakeTriton(MODEL)
    yield made
    made.stop()


def turn(url: str, key: str | None = None, **fields: Any) -> httpx.Response:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    response = httpx.post(
        f"{url}/v1/chat/interactive", json=TURN | fields, headers=headers, timeout=20, trust_env=False
    )
    assert response.status_code == 200, response.text
    return response


def keyed(fake: FakeTriton) -> Settings:
    return Settings(triton_address=fake.address, api_keys=("ann's", "bob's"))


def test_a_fresh_conversation_goes_on_with_nobody_s(fake: FakeTriton) -> None:
    fake.sessions |= set(range(1000))  # as other gateways, or this one before it was restarted, have begun
    for _ in range(2):
        with running_gateway(Settings(triton_address=fake.address)) as url:
            turn(url)
            turn(url)
    begun = [request.inputs for request in fake.requests]
    assert [inputs["sequence_start"] for inputs in begun] == [True] * 4
    ids = [inputs["session_id"] for inputs in begun]
    assert len({*ids, *range(1000)}) == 1004
    assert all(0 < session < 2**53 for session in ids)
    assert max(ids) > 2**40  # 53 random bits: one in 10**15 runs fails


def test_the_same_id_of_two_keys_is_two_conversations(fake: FakeTriton) -> None:
    with running_gateway(keyed(fake)) as url:
        turn(url, "ann's", session_id=5)
        turn(url, "bob's", session_id=5)
        assert len(fake.sessions) == 2
        started = [request.inputs["session_id"] for request in fake.requests if request.inputs["sequence_start"]]
        assert set(started) == fake.sessions
        turn(url, "bob's", session_id=5, **END)
        assert fake.sessions == {started[0]}
        turn(url, "ann's", session_id=5)
        assert fake.requests[-1].inputs["session_id"] == started[0]
        assert fake.requests[-1].inputs["sequence_start"] is False


def test_a_key_finds_its_conversation_again_in_another_process(fake: FakeTriton) -> None:
    for _ in range(2):
        with running_gateway(keyed(fake)) as url:
            turn(url, "ann's", session_id=5)
    assert len(fake.sessions) == 1
    assert fake.requests[-1].inputs["sequence_start"] is False


async def test_no_key_cancels_what_another_runs(fake: FakeTriton) -> None:
    fake.script = Script(hold_after=1)
    with running_gateway(keyed(fake)) as url:
        body, headers = TURN | {"session_id": 5}, {"authorization": "Bearer ann's"}
        http = httpx.AsyncClient(base_url=url, headers=headers, trust_env=False)
        running = asyncio.create_task(http.post("/v1/chat/interactive", json=body))
        await eventually(lambda: len(fake.requests) == 2)
        await asyncio.to_thread(turn, url, "bob's", session_id=5, cancel=True)
        await asyncio.to_thread(turn, url, "ann's", session_id=5, cancel=True)
        reference, other = [control["CORRID"] for control in fake.controls]
        assert other == fake.requests[-1].inputs["session_id"] != reference
        await running
        await http.aclose()


def test_a_session_is_occupied_for_the_key_that_has_it(fake: FakeTriton) -> None:
    body = {"model": MODEL, "messages": "a", "session_id": 5}
    with running_gateway(keyed(fake)) as url:
        turn(url, "ann's", session_id=5)
        for key, status in (("ann's", 400), ("bob's", 200)):
            headers = {"authorization": f"Bearer {key}"}
            response = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, trust_env=False)
            assert response.status_code == status


def test_what_a_caller_sends_never_begins_a_line_of_the_log(fake: FakeTriton, caplog: pytest.LogCaptureFixture) -> None:
    forged = "\nINFO access: request=forged status=200\x1b[2J\u2028"
    settings = Settings(triton_address=fake.address, max_log_len=100)
    with caplog.at_level(logging.INFO), running_gateway(settings) as url:
        httpx.get(url + "/v1/none%0AINFO%20forged%1b", trust_env=False)
        body = {"model": MODEL, "prompt": forged}
        assert httpx.post(f"{url}/v1/completions", json=body, trust_env=False).status_code == 200
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("openai_gateway")]
    assert sum("forged" in line for line in messages) == 2
    assert all(line.isprintable() for line in messages)


def test_a_line_shows_what_it_escapes() -> None:
    assert one_line("a\nb\\\x00é中\u2028") == "a\\nb\\\\\\x00é中\\u2028"
    assert one_line("a" * 300) == "a" * 200 + "..."


def test_keys_share_no_cached_prompts_where_that_is_asked_for(fake: FakeTriton) -> None:
    def salts(settings: Settings, *requested: tuple[str | None, str | None]) -> list[str | None]:
        fake.requests.clear()
        with running_gateway(settings) as url:
            for key, salt in requested:
                turn(url, key, **({} if salt is None else {"cache_salt": salt}))
        return [request.inputs.get("cache_salt") for request in fake.requests]

    open_to_all = Settings(triton_address=fake.address)
    assert salts(open_to_all, (None, None), (None, "mine")) == [None, "mine"]
    assert salts(keyed(fake), ("ann's", None), ("bob's", "mine")) == [None, "mine"]
    apart = replace(keyed(fake), salts_by_key=True)
    made = salts(apart, ("ann's", None), ("ann's", None), ("bob's", None), ("ann's", "mine"), ("bob's", "mine"))
    assert made[0] == made[1]
    assert len({*made, None, "mine"}) == 6
    assert not any("ann" in str(salt) or "bob" in str(salt) for salt in made)  # a key is in no salt


def test_the_engine_is_reported_callers_apart_by_their_keys(fake: FakeTriton) -> None:
    with running_gateway(keyed(fake)) as url:
        for key in ("ann's", "ann's", "bob's"):
            turn(url, key)
    callers = [request.inputs.get("caller") for request in fake.requests]
    assert callers[0] == callers[1] != callers[2]
    assert all(callers)
    assert not any("ann" in str(caller) or "bob" in str(caller) for caller in callers)
    fake.requests.clear()
    with running_gateway(Settings(triton_address=fake.address)) as url:
        turn(url, None)
    assert [request.inputs.get("caller") for request in fake.requests] == [None]


@pytest.mark.parametrize("salt", [7, "x" * 257, ["a"]])
def test_a_salt_is_a_short_text(fake: FakeTriton, salt: Any) -> None:
    with running_gateway(Settings(triton_address=fake.address)) as url:
        response = httpx.post(f"{url}/v1/chat/interactive", json=TURN | {"cache_salt": salt}, trust_env=False)
    assert response.status_code in (400, 422)
    assert "cache_salt" in response.text
