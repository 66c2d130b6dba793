"""REST contract of LMDeploy 0.6.5's clients, a line each; the first word of an id is its section."""

import json
from typing import Any

import grpc
import httpx
import openai
import pytest

from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import CONTEXT_LEN, FakeTriton, Script
from tests.support.gateways import running_gateway

HELLO: Any = [{"role": "user", "content": "Hello"}]
CHAT, COMPLETIONS, INTERACTIVE = "/v1/chat/completions", "/v1/completions", "/v1/chat/interactive"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": HELLO},
    COMPLETIONS: {"model": MODEL, "prompt": "a"},
    INTERACTIVE: {"prompt": "a", "session_id": 3},
    "/v1/encode": {"input": "a"},
}
REPLY = "The capital of France is Paris."

# id, method, path, status
ENDPOINTS = [
    ("B1 health", "GET", "/health", 200),
    ("B1 models", "GET", "/v1/models", 200),
    ("B1 chat", "POST", CHAT, 200),
    ("B1 completions", "POST", COMPLETIONS, 200),
    ("B1 interactive", "POST", INTERACTIVE, 200),
    ("B1 encode", "POST", "/v1/encode", 200),
    ("B1 embeddings", "POST", "/v1/embeddings", 400),
    ("B1 documentation", "GET", "/", 200),
    ("B1 openapi", "GET", "/openapi.json", 200),
]
NEED_NO_KEY = {"/health", "/", "/openapi.json"}


@pytest.mark.parametrize(
    ("method", "path", "status"), [case[1:] for case in ENDPOINTS], ids=[case[0] for case in ENDPOINTS]
)
def test_endpoints_and_which_of_them_want_a_key(triton: FakeTriton, method: str, path: str, status: int) -> None:
    settings = Settings(triton_address=triton.address, api_keys=("k",))
    body = BODIES.get(path, {"input": "a"}) if method == "POST" else None
    with running_gateway(settings) as url, httpx.Client(base_url=url, trust_env=False) as http:
        with_key = http.request(method, path, json=body, headers={"authorization": "Bearer k"})
        assert with_key.status_code == status
        without = http.request(method, path, json=body)
        assert without.status_code == (status if path in NEED_NO_KEY else 401)
        if path == "/health":
            assert with_key.content == b""


@pytest.mark.parametrize("path", BODIES, ids=[f"B1 unknown fields of {path}" for path in BODIES])
def test_unknown_fields_are_ignored(http: httpx.Client, path: str) -> None:
    body = BODIES[path] | {"kwargs": {}, "nonsense": [1]}
    assert http.post(path, json=body).status_code == 200


def semantic_error(response: httpx.Response, status: int) -> str:
    """Return the text of a response whose body has the members of LMDeploy's errors."""
    assert response.status_code == status, response.text
    body = response.json()
    expected = {"type": "invalid_request_error", "code": status, "object": "error"}
    assert {name: body[name] for name in expected} == expected
    assert "param" in body
    message: str = body["message"]
    assert body["error"]["message"] == message
    return message


# id, fields, status, message
VALUES: list[tuple[str, dict[str, Any], int, str]] = [
    ("B3 model", {"model": "X"}, 404, "The model `X` does not exist."),
    ("B3 n", {"n": 0}, 400, "The n `0` must be a positive int."),
    ("B3 n negative", {"n": -2}, 400, "The n `-2` must be a positive int."),
    ("B3 top_p below 0", {"top_p": -0.5}, 400, "The top_p `-0.5` must be in (0, 1]."),
    ("B3 top_p above 1", {"top_p": 1.5}, 400, "The top_p `1.5` must be in (0, 1]."),
    ("B3 top_k", {"top_k": -2}, 400, "The top_k `-2` cannot be a negative integer."),
    ("B3 temperature below 0", {"temperature": -0.5}, 400, "The temperature `-0.5` must be in [0, 2]"),
    ("B3 temperature above 2", {"temperature": 2.5}, 400, "The temperature `2.5` must be in [0, 2]"),
    ("B3 order: model, then n", {"model": "X", "n": 0}, 404, "The model `X` does not exist."),
    ("B3 order: n, then top_p", {"top_p": 2, "n": 0}, 400, "The n `0` must be a positive int."),
    ("B3 order: top_p, then top_k", {"top_k": -2, "top_p": 2}, 400, "The top_p `2` must be in (0, 1]."),
    ("B3 order: top_k, then temperature", {"temperature": 9, "top_k": -2}, 400, "The top_k `-2` cannot be a"),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("fields", "status", "message"), [case[1:] for case in VALUES], ids=[case[0] for case in VALUES]
)
def test_values_out_of_range_have_lmdeploy_s_words(
    http: httpx.Client, triton: FakeTriton, path: str, fields: dict[str, Any], status: int, message: str
) -> None:
    assert semantic_error(http.post(path, json=BODIES[path] | fields), status).startswith(message)
    assert triton.requests == []


# id, body
MISTYPED: list[tuple[str, bytes]] = [
    ("B3 malformed JSON", b'{"model": '),
    ("B3 an empty body", b""),
    ("B3 no object", b"[1]"),
    ("B3 a missing field", b'{"stream": false}'),
    ("B3 a mistyped field", json.dumps({"model": MODEL, "messages": 3, "prompt": 3, "input": 3}).encode()),
    ("B3 a mistyped number", json.dumps(BODIES[CHAT] | {"prompt": "a", "input": 3, "temperature": "hot"}).encode()),
    ("B3 order: types, then model", json.dumps({"model": "X", "messages": 3, "prompt": 3, "input": 3}).encode()),
    ("B3 order: types, then values", json.dumps({"top_p": 9, "model": MODEL, "stream": 3}).encode()),
]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("body", [case[1] for case in MISTYPED], ids=[case[0] for case in MISTYPED])
def test_wrong_json_and_wrong_types_are_reported_in_both_forms_with_422_where_only_lmdeploy_s_clients_ask(
    http: httpx.Client, triton: FakeTriton, path: str, body: bytes
) -> None:
    response = http.post(path, content=body, headers={"content-type": "application/json"})
    semantic_error(response, 400 if path in (CHAT, COMPLETIONS) else 422)
    (detail,) = response.json()["detail"]
    assert {"type", "loc", "msg", "input"} <= set(detail)
    assert detail["loc"][0] == "body"
    assert triton.requests == []


def test_openai_s_client_has_a_class_for_each_kind_of_refusal(client: openai.OpenAI) -> None:
    """B3, seen by the other kind of client."""
    create: Any = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as mistyped:
        create(model=MODEL, messages=HELLO, temperature="hot")
    assert (mistyped.value.param, mistyped.value.code) == ("temperature", "invalid_type")
    with pytest.raises(openai.BadRequestError) as rejected:
        create(model=MODEL, messages=HELLO, temperature=9)
    assert (rejected.value.param, rejected.value.code) == ("temperature", "invalid_value")


def test_b3_a_cancel_is_answered_before_values_are_looked_at(http: httpx.Client) -> None:
    body = {"prompt": "", "session_id": 3, "cancel": True, "top_p": 9, "temperature": 9}
    response = http.post(INTERACTIVE, json=body)
    assert response.status_code == 200
    assert response.json() == {"text": "", "tokens": 0, "input_tokens": 0, "history_tokens": 0, "finish_reason": "stop"}
    body["session_id"] = -1
    assert semantic_error(http.post(INTERACTIVE, json=body), 400) == "please set a session_id to cancel a request"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "words",
    [
        "history and prompt must be shorter than the session length of 8 tokens, got 9",
        "the prompt must be shorter than the session length of 8 tokens, got more",
    ],
)
def test_b3_a_conversation_that_is_too_long_has_an_empty_response(
    http: httpx.Client, triton: FakeTriton, stream: bool, words: str
) -> None:
    triton.script = Script(fail_after=0, error=(grpc.StatusCode.INVALID_ARGUMENT, words))
    response = http.post(INTERACTIVE, json=BODIES[INTERACTIVE] | {"stream": stream, "interactive_mode": True})
    assert response.status_code == 200
    expected = {"text": "", "tokens": 0, "input_tokens": 0, "history_tokens": 0, "finish_reason": "length"}
    assert json.loads(response.text) == expected


def test_b4_a_model_card_has_every_member(http: httpx.Client) -> None:
    listed = http.get("/v1/models").json()
    (card,) = listed["data"]
    (permission,) = card.pop("permission")
    assert listed["object"] == "list"
    assert card.pop("created") > 1_600_000_000
    assert card.pop("sampling_defaults") == {"temperature": 0.7, "top_p": 1.0, "top_k": 40}
    assert {card.pop(name) for name in ("state", "memory_bytes", "last_used", "sleeps_in", "waiting_requests")} == {
        None
    }
    assert card.pop("load_error") is None
    assert card == {"id": MODEL, "object": "model", "owned_by": "lmdeploy", "root": MODEL, "parent": None} | {
        "max_model_len": CONTEXT_LEN
    }
    assert permission.pop("id").startswith("modelperm-")
    assert permission.pop("created") > 1_600_000_000
    allowed = dict.fromkeys(("sampling", "logprobs", "search_indices", "view"), True)
    forbidden = dict.fromkeys(("create_engine", "fine_tuning"), False)
    assert permission == {f"allow_{what}": can for what, can in (allowed | forbidden).items()} | {
        "object": "model_permission",
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }


# id, path, fields, inputs of the engine
DEFAULTS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("B5 temperature", CHAT, {}, {"temperature": 0.7}),
    ("B5 top_p", CHAT, {}, {"top_p": 1.0}),
    ("B5 top_k", CHAT, {}, {"top_k": 40}),
    ("B5 a text for messages", CHAT, {"messages": "as is"}, {"text_input": "as is"}),
    ("B5 top_logprobs without logprobs", CHAT, {"logprobs": False, "top_logprobs": 0}, {}),
    ("B5 stop", CHAT, {"stop": "x"}, {"stop_words": ["x"]}),
    ("B5 an id as bias key", CHAT, {"logit_bias": {"5": 1}}, {"logit_bias_ids": [5]}),
    ("B6 max_tokens", COMPLETIONS, {}, {"max_new_tokens": 16}),
    ("B6 max_tokens of 0", COMPLETIONS, {"max_tokens": 0}, {"max_new_tokens": 512}),
    ("B6 max_tokens of null", COMPLETIONS, {"max_tokens": None}, {"max_new_tokens": 512}),
    ("B6 temperature", COMPLETIONS, {}, {"temperature": 0.7}),
    ("B6 top_p", COMPLETIONS, {}, {"top_p": 1.0}),
    ("B6 top_k", COMPLETIONS, {}, {"top_k": 40}),
    ("B6 no template", COMPLETIONS, {"prompt": "as is"}, {"text_input": "as is"}),
    ("B6 suffix of null, echo", COMPLETIONS, {"suffix": None, "echo": False}, {}),
    ("B7 temperature", INTERACTIVE, {}, {"temperature": 0.8}),
    ("B7 top_p", INTERACTIVE, {}, {"top_p": 0.8}),
    ("B7 top_k", INTERACTIVE, {}, {"top_k": 40}),
    ("B7 a template is applied", INTERACTIVE, {"prompt": "a"}, {"messages": '[{"role":"user","content":"a"}]'}),
    ("B7 null members", INTERACTIVE, {"image_url": None, "adapter_name": None, "stop": None}, {}),
]


@pytest.mark.parametrize(
    ("path", "fields", "inputs"), [case[1:] for case in DEFAULTS], ids=[case[0] for case in DEFAULTS]
)
def test_fields_and_defaults(
    http: httpx.Client, triton: FakeTriton, path: str, fields: dict[str, Any], inputs: dict[str, Any]
) -> None:
    response = http.post(path, json=BODIES[path] | fields)
    assert response.status_code == 200, response.text
    given = triton.requests[0].inputs
    assert {name: given[name] for name in inputs} == {
        name: pytest.approx(value) if isinstance(value, float) else value for name, value in inputs.items()
    }


def events(response: httpx.Response) -> list[Any]:
    assert response.headers["content-type"].startswith("text/event-stream")
    *lines, last, end = response.text.split("\n\n")
    assert (last, end) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_b5_a_response_has_the_members_clients_read(http: httpx.Client) -> None:
    body = http.post(CHAT, json=BODIES[CHAT]).json()
    assert {"id", "object", "created", "model", "choices", "usage"} <= set(body)
    (choice,) = body["choices"]
    assert choice["message"] | {"role": "assistant", "content": REPLY, "tool_calls": None} == choice["message"]
    assert (choice["index"], choice["logprobs"], choice["finish_reason"]) == (0, None, "stop")
    assert body["model"] == MODEL
    counts = [body["usage"][f"{kind}_tokens"] for kind in ("prompt", "completion", "total")]
    assert counts == [7, 2, 9]


def test_b5_a_stream_is_events_with_an_end(http: httpx.Client) -> None:
    chunks = events(http.post(CHAT, json=BODIES[CHAT] | {"stream": True}))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert not any(chunk.get("usage") for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == REPLY
    assert [choice["delta"].get("role") for choice in choices] == ["assistant"] + [None] * (len(choices) - 1)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


def test_b6_every_event_of_a_stream_has_a_text(http: httpx.Client) -> None:
    chunks = events(http.post(COMPLETIONS, json=BODIES[COMPLETIONS] | {"stream": True}))
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == REPLY


def test_b7_a_stream_is_lines_of_objects_without_an_end_mark(http: httpx.Client) -> None:
    response = http.post(INTERACTIVE, json=BODIES[INTERACTIVE] | {"stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert all(set(line) == {"text", "tokens", "input_tokens", "history_tokens", "finish_reason"} for line in lines)
    assert "".join(line["text"] for line in lines) == REPLY
    assert lines[-1]["text"] == ""
    assert [line["tokens"] for line in lines] == [2, 4, 6, 6]
    assert [line["finish_reason"] for line in lines] == [None, None, None, "stop"]


@pytest.mark.parametrize("stream", [False, True])
def test_b9_gradio_s_three_requests_of_a_cancel_are_lines(http: httpx.Client, stream: bool) -> None:
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    for fields in (
        {"prompt": "", "cancel": True},
        {"prompt": "", "request_output_len": 0, "interactive_mode": False},
        {"prompt": history, "request_output_len": 0, "interactive_mode": True},
    ):
        response = http.post(INTERACTIVE, json={"session_id": 1, "stream": stream} | fields)
        assert response.status_code == 200
        assert {"text", "tokens", "finish_reason"} <= set(json.loads(response.text.splitlines()[0]))


OF_ALL: dict[str, Any] = {"repetition_penalty": 1.0, "ignore_eos": False, "skip_special_tokens": True, "kwargs": {}}
TURN: dict[str, Any] = {"top_p": 0.8, "top_k": 40, "temperature": 0.8, "image_url": None, "adapter_name": None}
# id, path, the body as the client sends it
BODIES_OF_CLIENTS: list[tuple[str, str, dict[str, Any]]] = [
    (
        "B9 terminal",
        INTERACTIVE,
        OF_ALL
        | TURN
        | {"prompt": "a", "session_id": 1, "interactive_mode": True, "stream": True, "stop": None}
        | {"request_output_len": 512},
    ),
    (
        "B9 APIClient.chat_completions_v1",
        CHAT,
        OF_ALL
        | {"model": MODEL, "messages": HELLO, "temperature": 0.7, "top_p": 1.0, "logprobs": False, "top_logprobs": 0}
        | {"n": 1, "max_tokens": None, "stop": None, "stream": False, "presence_penalty": 0.0}
        | {"frequency_penalty": 0.0, "user": None, "session_id": -1},
    ),
    (
        "B9 APIClient.completions_v1",
        COMPLETIONS,
        OF_ALL
        | {"model": MODEL, "prompt": "a", "suffix": None, "temperature": 0.7, "n": 1, "max_tokens": 16}
        | {"stream": False, "stop": None, "top_p": 1.0, "top_k": 40, "user": None, "session_id": -1},
    ),
    (
        "B9 APIClient.chat_interactive_v1",
        INTERACTIVE,
        OF_ALL
        | TURN
        | {"prompt": HELLO, "session_id": -1, "interactive_mode": False, "stream": False, "stop": None}
        | {"request_output_len": None},
    ),
    (
        "B9 gradio",
        INTERACTIVE,
        {"prompt": "a", "stream": True, "session_id": 1, "request_output_len": 512, "interactive_mode": True}
        | {"ignore_eos": False, "cancel": False, "top_p": 0.8, "temperature": 0.7},
    ),
    (
        "B9 profile_restful_api",
        COMPLETIONS,
        {"model": MODEL, "prompt": "a", "temperature": 0.0, "best_of": 1, "max_tokens": 8, "stream": True}
        | {"ignore_eos": True},
    ),
]


@pytest.mark.parametrize(
    ("path", "body"), [case[1:] for case in BODIES_OF_CLIENTS], ids=[case[0] for case in BODIES_OF_CLIENTS]
)
def test_what_clients_send_is_served_with_any_key(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    response = http.post(path, json=body, headers={"authorization": "Bearer None", "user-agent": "Test Client"})
    assert response.status_code == 200, response.text
    assert "error" not in response.text
