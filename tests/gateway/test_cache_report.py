"""Usage with ``include_cache_report``: what the prefix cache had of a prompt, and why no more."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from tests.support.fake_triton import FakeTriton, Script, token_ids

MODEL = "fake-model"
MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Why"},
]
TOOL = {"type": "function", "function": {"name": "tick", "parameters": {"type": "object", "properties": {}}}}
FOUND = {"found": 60, "device": 30, "host": 20, "disk": 10, "snapshot": 40}


def numbers(end: int, token: int, seconds: int = 0) -> tuple[int, ...]:
    """Return the engine's output."""
    return (30, 20, 10, 40, end, token, seconds)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


APIS: dict[str, tuple[str, dict[str, Any], Callable[[httpx.Response], Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": MESSAGES}, lambda response: response.json()["usage"]),
    "chat, logprobs": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "logprobs": True},
        lambda response: response.json()["usage"],
    ),
    "chat, streamed": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}},
        lambda response: events(response)[-1]["usage"],
    ),
    "chat, two choices": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "n": 2},
        lambda response: response.json()["usage"],
    ),
    "completions": ("/v1/completions", {"prompt": "a"}, lambda response: response.json()["usage"]),
    "completions, streamed": (
        "/v1/completions",
        {"prompt": "a", "stream": True, "stream_options": {"include_usage": True}},
        lambda response: events(response)[-1]["usage"],
    ),
    "responses": ("/v1/responses", {"input": "a"}, lambda response: response.json()["usage"]),
    "responses, streamed": (
        "/v1/responses",
        {"input": "a", "stream": True},
        lambda response: events(response)[-1]["response"]["usage"],
    ),
    "messages": (
        "/v1/messages",
        {"messages": MESSAGES[1:2], "max_tokens": 9},
        lambda response: response.json()["usage"],
    ),
    "messages, streamed": (
        "/v1/messages",
        {"messages": MESSAGES[1:2], "max_tokens": 9, "stream": True},
        lambda response: events(response)[-2]["usage"],
    ),
}


@pytest.mark.parametrize("api", APIS)
def test_every_usage_has_the_report_that_was_asked_for(triton: FakeTriton, http: httpx.Client, api: str) -> None:
    path, body, usage_of = APIS[api]
    triton.script = Script(cache_report=numbers(3, 60, 40))
    request = {"model": MODEL, **body}
    usage = usage_of(http.post(path, json=request | {"include_cache_report": True}))
    assert usage["cache_report"] == FOUND | {"token": 60, "reason": "was evicted 40 s ago from token 60 on"}
    assert "cache_report" in triton.requests[-1].outputs
    for without in (request, request | {"include_cache_report": False}):
        assert "cache_report" not in usage_of(http.post(path, json=without))
        assert "cache_report" not in triton.requests[-1].outputs
    rejected = http.post(path, json=request | {"include_cache_report": "all"})
    assert rejected.status_code in (400, 422)
    assert "include_cache_report" in rejected.text


def test_each_of_several_prompts_has_a_report(triton: FakeTriton, http: httpx.Client) -> None:
    triton.script = lambda received: Script(cache_report=numbers(3, 60, len(received.inputs["text_input"])))
    body = {"model": MODEL, "prompt": ["a", "bcd"], "n": 2, "include_cache_report": True}
    reports = http.post("/v1/completions", json=body).json()["usage"]["cache_report"]
    assert [report["reason"][12:15] for report in reports] == ["1 s", "3 s"]


PARTS = {  # text at the token -> its part
    "kind": "message 1 (system)",
    "tick": "the tool list",
    "Hi": "message 2 (user)",
    "<assistant>": "message 3 (assistant)",
    "Yes": "message 3 (assistant)",
    "Why": "message 4 (user)",
}


@pytest.mark.parametrize("at", PARTS)
@pytest.mark.parametrize(
    ("end", "words"), [(1, "differs at token {}, in {}"), (2, "nothing is known from token {} on, in {}")]
)
def test_a_reason_names_the_part_of_the_prompt(
    triton: FakeTriton, http: httpx.Client, at: str, end: int, words: str
) -> None:
    def script(received: Any) -> Script:
        parts = [f"<{message['role']}>{message['content']}" for message in MESSAGES]
        parts.insert(1, f"<tools>{json.loads(received.inputs['tools'])}")
        return Script(cache_report=numbers(end, len(token_ids("".join(parts).partition(at)[0]))))

    triton.script = script
    body = {"model": MODEL, "messages": MESSAGES, "tools": [TOOL], "include_cache_report": True}
    report = http.post("/v1/chat/completions", json=body).json()["usage"]["cache_report"]
    assert report["reason"] == words.format(report["token"], PARTS[at])


REASONS: Mapping[tuple[int, int], tuple[int | None, str | None]] = {
    (0, 60): (None, None),
    (4, 70): (70, "known up to token 70, but not all that layers with a state or a window need there"),
    (5, 0): (None, "prefix caching is off"),
    (6, 0): (None, "the request has the whole prompt computed"),
    (1, 70): (70, "differs at token 70"),  # a finished prompt has no parts
}


@pytest.mark.parametrize("given", REASONS)
def test_other_reasons_also_in_the_log(
    triton: FakeTriton, http: httpx.Client, caplog: pytest.LogCaptureFixture, given: tuple[int, int]
) -> None:
    caplog.set_level(logging.DEBUG, "lmdeploy.serve.cache_report")
    triton.script = Script(cache_report=numbers(*given))
    body = {"model": MODEL, "prompt": "a", "include_cache_report": True}
    report = http.post("/v1/completions", json=body).json()["usage"]["cache_report"]
    assert report == FOUND | dict(zip(("token", "reason"), REASONS[given], strict=True))
    assert f"{triton.requests[-1].id}: prefix cache: {report}" in caplog.text
