"""``/v1/chat/interactive``: conversations and their turns, and whose they are."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from typing import Any

import grpc
import httpx
import pytest

from openai_gateway.errors import one_line
from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script, token_ids
from tests.support.gateways import running_gateway
from tests.support.waiting import eventually

TURN = {"prompt": "Hello", "interactive_mode": True}
END = {"prompt": "", "request_output_len": 0, "interactive_mode": False}


def turn(url: str, key: str | None = None, **fields: Any) -> httpx.Response:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    response = httpx.post(f"{url}/v1/chat/interactive", json=TURN | fields, headers=headers, trust_env=False)
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
    separate = replace(keyed(fake), cache_salt_by_key=True)
    made = salts(separate, ("ann's", None), ("ann's", None), ("bob's", None), ("ann's", "mine"), ("bob's", "mine"))
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


def interactive_turn(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post("/v1/chat/interactive", json=TURN | {"session_id": 5} | fields)


def test_a_conversation_begins_goes_on_and_ends(http: httpx.Client, triton: FakeTriton) -> None:
    triton.script = Script(history_token_len=3)
    response = interactive_turn(http).json()
    text = "The capital of France is Paris."
    assert response == {"text": text, "tokens": 2, "input_tokens": 7, "history_tokens": 3, "finish_reason": "stop"}
    assert interactive_turn(http).status_code == 200
    inputs = [request.inputs for request in triton.requests]
    assert [given["sequence_start"] for given in inputs] == [False, True, False]  # the engine knows what it holds
    assert json.loads(inputs[0]["messages"]) == [{"role": "user", "content": "Hello"}]
    assert (round(inputs[0]["temperature"], 6), round(inputs[0]["top_p"], 6), inputs[0]["top_k"]) == (0.8, 0.8, 40)
    ended = interactive_turn(http, **END).json()
    assert ended == {"text": "", "tokens": 0, "input_tokens": 0, "history_tokens": 0, "finish_reason": "stop"}
    assert triton.controls[-1]["END"] == 1
    assert triton.sessions == set()
    assert interactive_turn(http, **END).status_code == 200  # once more harms nothing


def test_a_turn_without_interactive_mode_ends_its_session(http: httpx.Client, triton: FakeTriton) -> None:
    interactive_turn(http)
    assert interactive_turn(http, interactive_mode=False).status_code == 200
    assert triton.requests[-1].inputs["sequence_end"] is True
    assert triton.sessions == set()
    interactive_turn(http, interactive_mode=False)
    assert "session_id" not in triton.requests[-1].inputs  # unknown: answered alone


async def test_cancel_stops_what_the_session_runs(url: str, triton: FakeTriton) -> None:
    triton.script = Script(hold_after=1)
    body = {"prompt": "Hello", "session_id": 5, "interactive_mode": True}
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        running = asyncio.create_task(http.post("/v1/chat/interactive", json=body))
        await eventually(lambda: len(triton.requests) == 2)
        response = await http.post("/v1/chat/interactive", json=body | {"cancel": True, "prompt": ""})
        assert response.json()["text"] == ""
        assert triton.controls == [{"STOP": 1, "CORRID": 5}]
        await running


def test_a_whole_conversation_can_be_restored(http: httpx.Client, triton: FakeTriton) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert interactive_turn(http, prompt=messages, request_output_len=0).status_code == 200
    assert json.loads(triton.requests[-1].inputs["messages"]) == messages
    assert triton.requests[-1].inputs["max_new_tokens"] == 0


@pytest.mark.parametrize(
    ("fields", "param", "status"),
    [
        ({"cancel": True, "session_id": -1}, "session_id", 400),
        ({"prompt": ""}, "prompt", 400),
        ({"image_url": "http://x/y.png"}, "messages[0].content[0].image_url.url", 400),
        ({"adapter_name": "a"}, "adapter_name", 400),
        ({"request_output_len": -1}, "request_output_len", 400),
        ({"session_id": "five"}, "session_id", 422),
        ({"top_k": -1}, "top_k", 400),
        ({"top_p": 0}, "top_p", 400),
        ({"cache_salt": 7}, "cache_salt", 422),
        ({"cache_salt": ["a"]}, "cache_salt", 422),
        ({"cache_salt": "x" * 257}, "cache_salt", 400),
    ],
)
def test_bad_fields_are_named(http: httpx.Client, fields: dict[str, Any], param: str, status: int) -> None:
    response = interactive_turn(http, **fields)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param


def test_a_session_in_use_is_occupied_for_the_other_apis(http: httpx.Client) -> None:
    interactive_turn(http, session_id=77)
    body = {"model": MODEL, "messages": "a", "session_id": 77}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["message"] == "The session_id `77` is occupied."
    interactive_turn(http, session_id=77, **END)
    assert http.post("/v1/chat/completions", json=body).status_code == 200


def test_encode_counts_tokens(http: httpx.Client) -> None:
    def encode(**fields: Any) -> Any:
        response = http.post("/v1/encode", json=fields)
        assert response.status_code == 200, response.text
        return response.json()

    assert encode(input="hé") == {"input_ids": token_ids("hé"), "length": 4}
    assert encode(input="hé", add_bos=False) == {"input_ids": token_ids("hé")[1:], "length": 3}
    assert encode(input=["a", "bc"])["length"] == [2, 3]
    assert encode(input="a", do_preprocess=True)["input_ids"] == token_ids("<user>a")
    assert encode(input="") == {"input_ids": [1], "length": 1}
    assert encode(input=["", "a"], add_bos=False)["input_ids"] == [[], token_ids("a")[1:]]
    assert http.post("/v1/encode", json={"input": "bad"}).status_code == 400


def test_tokenize_and_detokenize_are_inverse(http: httpx.Client) -> None:
    requested = {"model": MODEL, "prompt": "h🦜", "add_special_tokens": False}
    tokens = http.post("/tokenize", json=requested).json()
    assert tokens["count"] == len(tokens["tokens"]) == 5
    assert http.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": "h🦜"}
    of_messages = http.post("/tokenize", json={"messages": [{"role": "user", "content": "a"}]}).json()
    assert of_messages["tokens"] == token_ids("<user>a")
    unknown = http.post("/detokenize", json={"tokens": [10**6]})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "tokens")


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("messages", ["Hi", [{"role": "user", "content": "Hi"}]])
@pytest.mark.parametrize("logprobs", [False, True])
def test_streams_of_lmdeploy_s_client_have_whole_deltas(http: httpx.Client, messages: Any, logprobs: bool) -> None:
    body = {"model": MODEL, "messages": messages, "stream": True, "logprobs": logprobs, "top_logprobs": 0, "kwargs": {}}
    *choices, last = (event["choices"][0] for event in events_of(http.post("/v1/chat/completions", json=body)))
    assert choices
    for choice in choices:
        assert choice["delta"]["role"] == "assistant"
        assert choice["delta"]["content"]
        assert choice["finish_reason"] is None
        assert bool(choice["logprobs"]) == logprobs
    assert last["delta"] == {"role": "assistant", "content": ""}
    assert (last["finish_reason"], last["logprobs"]) == ("stop", None)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_prompt_that_is_too_long_is_no_error_to_lmdeploy_s_client(
    http: httpx.Client, triton: FakeTriton, path: str, stream: bool
) -> None:
    words = "the prompt must be shorter than the session length of 4096 tokens, got 5000"
    triton.script = Script(fail_after=0, error=(grpc.StatusCode.INVALID_ARGUMENT, words))
    body = {"model": MODEL, "messages": "a", "prompt": "a", "n": 2, "stream": stream}
    assert http.post(path, json=body).status_code == 400
    choices = [one for event in events_of(http.post(path, json=body | {"kwargs": {}})) for one in event["choices"]]
    assert [(one["index"], one["finish_reason"]) for one in choices] == [(0, "length"), (1, "length")]
    for choice in choices:
        assert (choice.get("delta") or choice.get("message") or {"content": choice.get("text")})["content"] == ""


def test_stream_may_be_a_word(http: httpx.Client) -> None:
    for path, prompt in (
        ("/v1/chat/interactive", {"prompt": "a"}),
        ("/v1/completions", {"model": MODEL, "prompt": "a"}),
    ):
        for word, value in (("true", True), ("false", False)):
            spelt, meant = (http.post(path, json=prompt | {"stream": stream}) for stream in (word, value))
            assert spelt.headers["content-type"] == meant.headers["content-type"]
            assert len(events_of(spelt)) == len(events_of(meant))
