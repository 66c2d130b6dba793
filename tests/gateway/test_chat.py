"""Chats and completions, through the real client."""

import json
from typing import Any

import grpc
import httpx
import openai
import pytest

from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Received, Script
from tests.support.waiting import eventually_sync

HELLO: Any = [{"role": "user", "content": "What is the capital of France?"}]
REPLY = "The capital of France is Paris."
PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9},
    "/v1/chat/interactive": {"prompt": "a"},
}


def test_usage_is_one_last_chunk_when_asked_for(client: openai.OpenAI) -> None:
    *chunks, last = client.chat.completions.create(
        model=MODEL, messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (7, 6)


@pytest.mark.parametrize(
    "text", ['"quotes" and \\', "line\nbreak\r\n\n", "你好, 🦜", "\x00\x1f\u2028", "data: [DONE]\n\n"]
)
def test_any_text_survives_streaming(client: openai.OpenAI, triton: FakeTriton, text: str) -> None:
    triton.script = Script(texts=[text, "", text])
    chunks = client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text * 2


def test_every_option_reaches_the_engine(client: openai.OpenAI, triton: FakeTriton) -> None:
    client.chat.completions.create(
        model=MODEL,
        messages=HELLO,
        temperature=0.5,
        top_p=0.25,
        max_completion_tokens=9,
        seed=-1,
        stop=["a", "bc"],
        extra_body={
            "top_k": 3,
            "repetition_penalty": 1.5,
            "ignore_eos": True,
            "skip_special_tokens": False,
            "min_new_tokens": 2,
            "session_id": 5,
            "kwargs": {},
        },
    )
    inputs = triton.requests[0].inputs
    assert json.loads(inputs.pop("messages")) == HELLO
    assert inputs == {
        "stream": False,
        "temperature": 0.5,
        "top_p": 0.25,
        "max_new_tokens": 9,
        "random_seed": 2**64 - 1,
        "stop_words": ["a", "bc"],
        "top_k": 3,
        "repetition_penalty": 1.5,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "min_new_tokens": 2,
    }


@pytest.mark.parametrize("fields", [{"min_tokens": 3}, {"min_tokens": 3, "min_new_tokens": 3}])
@pytest.mark.parametrize(("path", "prompt"), PROMPTS.items())
def test_other_names_of_a_field_reach_the_engine_from_every_body(
    http: httpx.Client, triton: FakeTriton, path: str, prompt: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert http.post(path, json={"model": MODEL, **prompt, **fields}).status_code == 200
    assert triton.requests[0].inputs["min_new_tokens"] == 3
    rejected = http.post(path, json={"model": MODEL, **prompt, **fields, "min_new_tokens": 4})
    assert rejected.status_code == 400
    assert "min_new_tokens and min_tokens must be equal" in rejected.text


@pytest.mark.parametrize(
    ("given", "words", "param"),
    [
        ("max_tokens", "max_new_tokens must be even", "max_tokens"),
        ("max_completion_tokens", "max_new_tokens must be even", "max_completion_tokens"),
        ("min_tokens", "min_new_tokens must be even", "min_tokens"),
        ("min_new_tokens", "min_new_tokens must be even", "min_new_tokens"),
        ("max_tokens", "text_input must be even", "messages"),
        ("max_tokens", "each token of logit_bias must be even", "logit_bias"),
        ("max_tokens", "there is no GPU", None),
    ],
)
def test_errors_of_the_engine_have_the_caller_s_names(
    http: httpx.Client, triton: FakeTriton, given: str, words: str, param: str | None
) -> None:
    triton.script = Script(fail_after=0, error=(grpc.StatusCode.INVALID_ARGUMENT, words))
    error = http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO, given: 5}).json()["error"]
    assert error["param"] == param
    assert error["message"].endswith(f"{param} must be even" if param else words)


def test_absent_and_null_options_have_lmdeploy_s_defaults(http: httpx.Client, triton: FakeTriton) -> None:
    names = "temperature top_p top_k max_tokens stop seed n stream tools logprobs stream_options"
    nulls = dict.fromkeys(names.split())
    for options in ({}, nulls):
        assert http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO, **options}).status_code == 200
    first, second = (request.inputs for request in triton.requests)
    assert first == second
    assert (round(first["temperature"], 6), first["top_p"], first["top_k"]) == (0.7, 1.0, 40)
    assert first["max_new_tokens"] == -1
    assert not {"random_seed", "stop_words"} & set(first)


def test_content_parts_and_the_developer_role_become_what_templates_know(
    client: openai.OpenAI, triton: FakeTriton
) -> None:
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]
    client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts, "name": "ann"}],
    )
    assert json.loads(triton.requests[0].inputs["messages"]) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello there", "name": "ann"},
    ]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_response_that_repeats_itself_is_cut_and_says_why(
    http: httpx.Client, triton: FakeTriton, path: str, *, whole: bool
) -> None:
    triton.script = Script(finish_reason="repetition")
    body = PROMPTS[path] | {"model": MODEL, "repetition_detection": "all", "stream": not whole}
    response = http.post(path, json=body)
    assert triton.requests[-1].inputs["repetition_detection"] == "all"
    text = response.text if whole else response.text.split("\n\n")[-3].removeprefix("data: ")
    (choice,) = json.loads(text)["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "repetition")
    rejected = http.post(path, json=body | {"repetition_detection": "some"})
    assert rejected.status_code == 400
    assert all(allowed in rejected.json()["error"]["message"] for allowed in ("off", "reasoning", "all"))


def test_one_failing_prompt_fails_the_request_and_cancels_the_others(http: httpx.Client, triton: FakeTriton) -> None:
    def script(received: Received) -> Script:
        if received.inputs["text_input"] == "good":
            return Script(hold_after=0)
        eventually_sync(lambda: len(triton.requests) == 2)  # it fails when the other one has begun
        return Script(fail_after=0)

    triton.script = script
    assert http.post("/v1/completions", json={"model": MODEL, "prompt": ["good", "bad"]}).status_code == 500
    good = next(request for request in triton.requests if request.inputs["text_input"] == "good")
    # The failed one is stopped too: after an error that is no refusal it might still run.
    assert good.id in (triton.stops.get(timeout=180), triton.stops.get(timeout=180))
