"""Errors by which programs know that a context is exceeded, each API's own, and bodies that are no JSON object."""

import re
from typing import Any

import anthropic
import grpc
import httpx
import ollama
import pytest

from lmdeploy.serve.errors import request_error
from openai_gateway.error_handling import as_api_error
from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import running_gateway

HELLO: Any = [{"role": "user", "content": "Hello"}]
TOO_LONG = "the prompt must be shorter than the session length of 4096 tokens, got 5000"
TOO_MUCH = "max_new_tokens must be at most the session length of 4096 tokens, got 9000"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9},
    "/api/chat": {"messages": HELLO},
    "/api/generate": {"prompt": "a"},
}


def rejecting(triton: FakeTriton, words: str) -> None:
    triton.script = Script(fail_after=0, error=(grpc.StatusCode.INVALID_ARGUMENT, words))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "param"), [("/v1/chat/completions", "messages"), ("/v1/completions", "prompt"), ("/v1/responses", "input")]
)
def test_a_prompt_that_is_too_long_has_openai_s_code_and_words(
    http: httpx.Client, triton: FakeTriton, path: str, param: str, stream: bool
) -> None:
    rejecting(triton, TOO_LONG)
    response = http.post(path, json={"model": MODEL, "stream": stream} | BODIES[path])
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "context_length_exceeded", param)
    # the expression by which clients of OpenAI's API read the two numbers
    found = re.search(
        r"maximum context length is (\d+) tokens\. However, your \w+ resulted in (\d+) tokens", error["message"]
    )
    assert found.groups() == ("4096", "5000")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("words", "tokens"), [(TOO_LONG, "5000"), (TOO_LONG.replace("5000", "more"), "4096")])
def test_a_prompt_that_is_too_long_has_anthropic_s_words(
    triton: FakeTriton, url: str, words: str, tokens: str, stream: bool
) -> None:
    rejecting(triton, words)
    with (
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client,
        pytest.raises(anthropic.BadRequestError) as rejected,
    ):
        client.messages.create(model=MODEL, max_tokens=9, messages=HELLO, stream=stream)
    body: Any = rejected.value.body
    assert body["error"] == {
        "type": "invalid_request_error",
        "message": f"prompt is too long: {tokens} tokens > 4095 maximum",
    }


def test_a_text_may_fill_the_context_where_nothing_answers_it() -> None:
    error = request_error("INVALID_ARGUMENT", TOO_LONG)
    assert as_api_error(error, "/api/embed").message.endswith("5000 tokens, at most 4096")


def test_a_prompt_that_is_too_long_is_one_of_ollama_s_errors(triton: FakeTriton, url: str) -> None:
    rejecting(triton, TOO_LONG)
    with pytest.raises(ollama.ResponseError, match="exceeds the context length: 5000 tokens, at most 4095") as rejected:
        ollama.Client(url, trust_env=False).chat(MODEL, HELLO)
    assert rejected.value.status_code == 400


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/completions", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
        ("/v1/chat/interactive", "request_output_len"),
    ],
)
def test_a_limit_that_no_context_holds_is_called_what_its_caller_calls_it(
    http: httpx.Client, triton: FakeTriton, path: str, name: str
) -> None:
    rejecting(triton, TOO_MUCH)
    body = {"model": MODEL} | BODIES.get(path, {"prompt": "a"}) | {name: 9000}
    error = http.post(path, json=body).json()["error"]
    assert error["param"] == name
    assert error["message"].startswith(f"{name} is too large: 9000. This model supports at most 4096")


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("body", [b"{", b"", b"[1]", b'{"model": 5}', b'{"messages": "Hi", "input": 3}'])
def test_what_is_no_body_of_an_api_is_a_400_in_its_form(http: httpx.Client, path: str, body: bytes) -> None:
    response = http.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    reported = response.json()
    if path.startswith("/api/"):
        assert isinstance(reported["error"], str)
    elif path == "/v1/messages":
        assert (reported["type"], reported["error"]["type"]) == ("error", "invalid_request_error")
    else:
        assert reported["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_ollama_s_bodies_are_json_whatever_they_are_said_to_be_and_openai_s_are_not(
    http: httpx.Client, triton: FakeTriton, kind: str | None
) -> None:
    headers = {"content-type": kind} if kind else {}
    body = b'{"model": "fake-model", "messages": [{"role": "user", "content": "Hello"}], "stream": false}'
    response = http.post("/api/chat", content=body, headers=headers)
    assert (response.status_code, response.json()["message"]["content"]) == (200, "The capital of France is Paris.")
    assert len(triton.requests) == 1
    rejected = http.post("/v1/chat/completions", content=body, headers=headers)
    assert rejected.status_code == 400
    assert "application/json" in rejected.json()["error"]["message"]


def test_a_body_without_a_type_still_needs_its_key_and_its_length(triton: FakeTriton) -> None:
    settings = Settings(triton_address=triton.address, api_keys=("k",), max_body_bytes=1000)
    with running_gateway(settings) as url:
        options = {"url": f"{url}/api/chat", "trust_env": False}
        assert httpx.post(**options, content=b"{}").status_code == 401
        headers = {"authorization": "Bearer k"}
        assert httpx.post(**options, content=b" " * 2000, headers=headers).status_code == 413
        assert httpx.post(**options, content=b"{", headers=headers).status_code == 400
