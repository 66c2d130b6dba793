"""The tokens of a body, for routers: what the engine would be asked with, and nothing generated."""

import json
from typing import Any

import httpx
import pytest

from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, token_ids

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def test_a_conversation_is_reported_as_the_tokens_that_preprocessing_makes(
    http: httpx.Client, triton: FakeTriton
) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hé"}], "stream": True, "max_tokens": 5}
    response = http.post("/v1/chat/completions/render", json=body, headers={"x-request-id": "mine"})
    assert response.status_code == 200
    assert response.json() == {"request_id": "mine", "model": MODEL, "token_ids": token_ids("<user>hé")}
    assert triton.requests == []


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [token_ids("ab")]),
        (["a", "b"], [token_ids("a"), token_ids("b")]),
        ([5, 6], [[5, 6]]),
        ([[5], [6, 7]], [[5], [6, 7]]),
        ("", [token_ids("")]),
    ],
)
def test_each_prompt_of_a_completion_is_reported(
    http: httpx.Client, triton: FakeTriton, prompt: Any, expected: list[list[int]]
) -> None:
    response = http.post("/v1/completions/render", json={"model": MODEL, "prompt": prompt})
    assert [one["token_ids"] for one in response.json()] == expected
    assert triton.requests == []


def test_tools_are_applied(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr("tests.support.fake_triton._prompt", lambda inputs: seen.append(inputs) or [1])
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}
    assert http.post("/v1/chat/completions/render", json=body).json()["token_ids"] == [1]
    (inputs,) = seen
    assert [tool["function"]["name"] for tool in json.loads(inputs["tools"])] == ["look"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "none"},
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"chat_template_kwargs": {"date": "today"}},
        {"enable_thinking": False, "reasoning_effort": "low"},
    ],
)
def test_tokenize_renders_as_chat_completions_do(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr("tests.support.fake_triton._prompt", lambda inputs: seen.append(inputs) or [1])
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]} | fields
    assert http.post("/v1/chat/completions/render", json=body).status_code == 200
    assert http.post("/tokenize", json=body).json() == {"tokens": [1], "count": 1}
    rendered, tokenized = seen
    assert tokenized == rendered
    http.post("/tokenize", json=body | {"add_special_tokens": True})
    assert seen[-1] == rendered | {"add_special_tokens": True}


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"model": "another", "messages": [{"role": "user", "content": "hi"}]}, 404, "model"),
        ({"model": MODEL, "messages": []}, 400, "messages"),
        (
            {
                "model": MODEL,
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}]}
                ],
            },
            400,
            "messages",
        ),
    ],
)
def test_what_cannot_be_reported_is_refused(http: httpx.Client, body: dict[str, Any], status: int, param: str) -> None:
    response = http.post("/v1/chat/completions/render", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
