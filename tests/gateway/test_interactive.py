"""``/v1/chat/interactive``, ``/v1/encode`` and the rest of LMDeploy's own surface, as its clients use it."""

import asyncio
import json
from typing import Any

import grpc
import httpx
import pytest

from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script, token_ids
from tests.support.waiting import eventually

REPLY = "The capital of France is Paris."


def turn(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post(
        "/v1/chat/interactive", json={"prompt": "Hello", "session_id": 5, "interactive_mode": True} | fields
    )


def test_a_conversation_begins_goes_on_and_ends(http: httpx.Client, triton: FakeTriton) -> None:
    triton.script = Script(history_token_len=3)
    response = turn(http).json()
    assert response == {"text": REPLY, "tokens": 2, "input_tokens": 7, "history_tokens": 3, "finish_reason": "stop"}
    assert turn(http).status_code == 200
    inputs = [request.inputs for request in triton.requests]
    assert [given["sequence_start"] for given in inputs] == [False, True, False]  # the engine knows what it holds
    assert json.loads(inputs[0]["messages"]) == [{"role": "user", "content": "Hello"}]
    assert (round(inputs[0]["temperature"], 6), round(inputs[0]["top_p"], 6), inputs[0]["top_k"]) == (0.8, 0.8, 40)
    ended = turn(http, prompt="", request_output_len=0, interactive_mode=False).json()
    assert ended == {"text": "", "tokens": 0, "input_tokens": 0, "history_tokens": 0, "finish_reason": "stop"}
    assert triton.controls[-1]["END"] == 1
    assert triton.sessions == set()


def test_ending_an_unknown_session_is_fine(http: httpx.Client) -> None:
    assert turn(http, session_id=99, prompt="", request_output_len=0, interactive_mode=False).status_code == 200


def test_a_turn_without_interactive_mode_ends_its_session(http: httpx.Client, triton: FakeTriton) -> None:
    turn(http)
    assert turn(http, interactive_mode=False).status_code == 200
    assert triton.requests[-1].inputs["sequence_end"] is True
    assert triton.sessions == set()
    turn(http, interactive_mode=False)
    assert "session_id" not in triton.requests[-1].inputs  # unknown: answered alone


def test_a_stream_is_one_object_a_line(http: httpx.Client) -> None:
    response = turn(http, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert "".join(line["text"] for line in lines) == REPLY
    assert [line["tokens"] for line in lines] == [2, 4, 6, 6]
    assert [line["finish_reason"] for line in lines] == [None, None, None, "stop"]
    assert lines[-1]["text"] == ""


@pytest.mark.parametrize("stream", [False, True])
def test_control_requests_answer_parseable_lines(http: httpx.Client, stream: bool) -> None:
    for fields in ({"cancel": True, "prompt": ""}, {"prompt": "", "request_output_len": 0, "interactive_mode": False}):
        response = turn(http, stream=stream, **fields)
        assert response.status_code == 200
        assert json.loads(response.text)["finish_reason"] == "stop"


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
    assert turn(http, prompt=messages, request_output_len=0).status_code == 200
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
    ],
)
def test_bad_fields_are_named(http: httpx.Client, fields: dict[str, Any], param: str, status: int) -> None:
    response = turn(http, **fields)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param


def test_a_session_in_use_is_occupied_for_the_other_apis(http: httpx.Client) -> None:
    turn(http, session_id=77)
    body = {"model": MODEL, "messages": "a", "session_id": 77}
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["message"] == "The session_id `77` is occupied."
    turn(http, session_id=77, prompt="", request_output_len=0, interactive_mode=False)
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


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"top_k": -1}, "The top_k `-1` cannot be a negative integer."),
        ({"top_p": 0}, "The top_p `0` must be in (0, 1]."),
    ],
)
def test_what_openai_s_clients_may_say_is_refused_as_lmdeploy_does(
    http: httpx.Client, fields: dict[str, Any], words: str
) -> None:
    response = http.post("/v1/chat/interactive", json={"prompt": "a", **fields})
    assert response.status_code == 400
    assert response.json()["message"] == words
