import gzip
import json
from typing import Any

import grpc
import httpx
import openai
import pytest

from tests.gateway.conftest import MAX_BODY, MODEL
from tests.support.fake_triton import FakeTriton, Script

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOO_LONG = "prompt is too long: 9 tokens, session_len is 8"
NOT_LOADED = "The model `m` could not be loaded; the server's log says why."
HELLO: Any = [{"role": "user", "content": "Hello"}]


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """Return the OpenAI error of a response, whose form is checked."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    # as LMDeploy's clients expect it
    assert {name: body[name] for name in ("object", "message", "type", "param", "code")} == {
        **error,
        "object": "error",
        "code": status,
    }
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert error["message"]
    return error


BAD_VALUES: list[tuple[str, Any]] = [
    ("messages", []),
    ("messages", ""),
    ("messages[0].role", [{"role": "wizard", "content": "a"}]),
    ("messages[1].content", [*HELLO, {"role": "user"}]),
    ("messages[0].content", [{"role": "user", "content": None}]),
    ("messages[0].content[0]", [{"role": "user", "content": [{"type": "sound_url", "sound_url": {"url": "u"}}]}]),
    (
        "messages[0].content[0].video_url.url",
        [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "u"}}]}],
    ),
    (
        "messages[0].content[0].image_url.url",
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}],
    ),
    ("messages[0].tool_calls", [{"role": "user", "content": "a", "tool_calls": [CALL]}]),
    ("messages[0].content", [{"role": "user", "content": {"a": 1}}]),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", float("nan")),
    ("temperature", float("inf")),
    ("top_p", -0.1),
    ("top_p", 1.5),
    ("top_k", -2),
    ("repetition_penalty", 0),
    ("max_tokens", 0),
    ("max_tokens", 2**31),
    ("max_completion_tokens", -5),
    ("min_new_tokens", -1),
    ("min_tokens", -1),
    ("use_beam_search", True),
    ("chat_template", "{{ messages }}"),
    ("seed", 2**64),
    ("stop", ""),
    ("n", 129),
    ("n", 0),
    ("top_logprobs", 3),
    ("top_logprobs", 21),
    ("logit_bias", {"token": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"5": 101}),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5),
    ("min_p", 1.1),
    ("session_id", -2),
    ("response_format", {"type": "xml"}),
    ("tools[0].type", [{"type": "spell", "function": {"name": "f"}}]),
    ("tools[0].function.name", [{"type": "function", "function": {"name": "no spaces"}}]),
    ("tool_choice", "required"),
    ("tool_choice", "sometimes"),
    ("functions[0].name", [{"name": "no spaces"}]),
    ("function_call", {"name": "f"}),
    ("reasoning_effort", "immense"),
    ("allowed_token_ids", []),
    ("modalities", ["text", "audio"]),
    ("stream_options", {"include_usage": True}),
]
MISTYPED_FIELDS: list[tuple[str, Any]] = [
    ("messages", 3),
    ("messages[0].tool_calls[0].function", [{"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}]),
    ("temperature", "hot"),
    ("temperature", True),
    ("max_tokens", 1.5),
    ("stop", 5),
    ("stop[1]", ["a", 5]),
    ("stream", "yes"),
    ("min_tokens", "5"),
    ("stream_options.include_usage", {"include_usage": 3}),
    ("logprobs", 1),
    ("response_format.json_schema", {"type": "json_schema"}),
    ("response_format.json_schema.name", {"type": "json_schema", "json_schema": {"schema": {}}}),
    ("tools[0].function.parameters", [{"type": "function", "function": {"name": "f", "parameters": []}}]),
    ("model", 5),
]
BAD_FIELDS = [*((*case, False) for case in BAD_VALUES), *((*case, True) for case in MISTYPED_FIELDS)]


@pytest.mark.parametrize(
    ("param", "value", "is_mistyped"), BAD_FIELDS, ids=[f"{param}-{value}"[:40] for param, value, _ in BAD_FIELDS]
)
def test_a_bad_field_is_named(
    http: httpx.Client, triton: FakeTriton, param: str, value: Any, is_mistyped: bool
) -> None:
    field = param.partition(".")[0].partition("[")[0]
    body = json.dumps({"model": MODEL, "messages": HELLO, field: value})
    response = http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    error = error_of(response, 400)
    assert error["param"] == param
    assert (error["code"] in ("invalid_type", "missing_required_parameter")) == is_mistyped
    assert param in error["message"] or field in error["message"] or "tool_calls" in error["message"]
    assert triton.requests == []


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"),
    [
        ("/v1/completions", {"prompt": ["a"] * 257}, "prompt", "at most 256 items, got 257"),
        ("/v1/completions", {"prompt": [[1]] * 257}, "prompt", "at most 256 items, got 257"),
        ("/v1/completions", {"prompt": [1, 2, "a"]}, "prompt[2]", "a valid integer, got 'a'"),
        ("/v1/completions", {"prompt": ["a", "b", 3]}, "prompt[2]", "a valid string, got 3"),
        ("/v1/completions", {"prompt": 5}, "prompt", "a valid string, got 5"),
        ("/v1/embeddings", {"input": ["a"] * 2049}, "input", "at most 2048 items, got 2049"),
        ("/v1/embeddings", {"input": [[1]] * 2049}, "input", "at most 2048 items, got 2049"),
        ("/v1/chat/completions", {"stop": ["a"] * 65}, "stop", "at most 64 items, got 65"),
        ("/v1/chat/completions", {"tool_choice": {"type": "function"}}, "tool_choice.function", "is required"),
        ("/v1/chat/completions", {"tool_choice": "sometimes"}, "tool_choice", "'none', 'auto' or 'required'"),
        ("/v1/chat/completions", {"tool_choice": 5}, "tool_choice", "got 5"),
    ],
)
def test_of_several_forms_the_one_that_fits_best_is_reported(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str, words: str
) -> None:
    error = error_of(http.post(path, json={"model": MODEL, "messages": HELLO} | fields), 400)
    assert error["param"] == param
    assert words in error["message"]


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("prompt", []),
        ("prompt", [1, "a"]),
        ("prompt", [[]]),
        ("prompt", [-1]),
        ("prompt", None),
        ("suffix", "x"),
        ("echo", "yes"),
        ("best_of", 2),
        ("logprobs", True),
        ("logprobs", 21),
        ("max_tokens", -1),
    ],
)
def test_a_bad_completion_field_is_named(http: httpx.Client, param: str, value: Any) -> None:
    error = error_of(http.post("/v1/completions", json={"model": MODEL, "prompt": "a", param: value}), 400)
    assert error["param"].startswith(param)


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_a_missing_field_is_named(http: httpx.Client, missing: str) -> None:
    body = {"model": MODEL, "messages": HELLO}
    del body[missing]
    error = error_of(http.post("/v1/chat/completions", json=body), 400)
    assert (error["param"], error["code"]) == (missing, "missing_required_parameter")


def test_two_different_token_limits_are_refused(http: httpx.Client) -> None:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 5, "max_completion_tokens": 6}
    assert error_of(http.post("/v1/chat/completions", json=body), 400)["param"] == "max_tokens"


@pytest.mark.parametrize(
    "body",
    [b'"text"', b"null", b"\xff\xfe{}", b'{"model": "\xff"}', b"[" * 50_000, b'{"a":' * 15_000],
    ids=lambda value: repr(value)[:12],
)
def test_a_body_that_is_no_json_object_is_refused(http: httpx.Client, body: bytes) -> None:
    error_of(http.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"}), 400)
    assert http.get("/health").status_code == 200


def test_a_compressed_body_is_a_415(http: httpx.Client) -> None:
    body = gzip.compress(json.dumps({"model": MODEL, "messages": HELLO}).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert "gzip" in error_of(http.post("/v1/chat/completions", content=body, headers=headers), 415)["message"]


def test_a_busy_session_is_asked_to_come_again(http: httpx.Client, triton: FakeTriton) -> None:
    words = "session 7 has a running request; wait for it or stop it"
    triton.script = Script(fail_after=0, error=(grpc.StatusCode.INVALID_ARGUMENT, words))
    response = http.post("/v1/chat/interactive", json={"prompt": "a", "session_id": 7, "interactive_mode": True})
    assert words in error_of(response, 409)["message"]
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("allowed_token_ids", [2**31 - 1]),
        ("guided_regex", "a"),
        ("response_format", {"type": "regex_schema", "regex_schema": "a"}),
    ],
)
def test_an_error_about_a_grammar_names_the_field_that_it_came_from(
    http: httpx.Client, triton: FakeTriton, field: str, value: Any
) -> None:
    words = "response_format: there is no token 2147483647; the last one is 99"
    triton.script = Script(fail_after=0, error=(grpc.StatusCode.INVALID_ARGUMENT, words))
    error = error_of(http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO, field: value}), 400)
    assert (error["param"], error["message"]) == (field, words.replace("response_format", field))


SCHEMA_FORM = {"type": "json_schema", "schema": {"type": "array", "uniqueItems": True}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("/v1/responses", {"input": "a", "text": {"format": SCHEMA_FORM}}, "text.format"),
        ("/v1/messages", {"max_tokens": 9, "output_config": {"format": SCHEMA_FORM}}, "output_config.format"),
        ("/api/chat", {"format": SCHEMA_FORM["schema"]}, "format"),
    ],
)
def test_a_schema_that_the_engine_refuses_is_named_as_the_api_has_it(
    http: httpx.Client, triton: FakeTriton, path: str, fields: dict[str, Any], field: str, stream: bool
) -> None:
    words = "refused at #/uniqueItems: is enforced where items are from an enum alone"
    triton.script = Script(fail_after=0, error=(grpc.StatusCode.INVALID_ARGUMENT, f"response_format: {words}"))
    messages = {} if "input" in fields else {"messages": HELLO}
    response = http.post(path, json={"model": MODEL, "stream": stream, **messages, **fields})
    assert response.status_code == 400
    assert f"{field}: {words}" in response.text


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_beyond_the_limit_is_a_413(http: httpx.Client, chunked: bool) -> None:
    body = b" " * (MAX_BODY + 1)
    content: Any = iter([body[:50_000], body[50_000:]]) if chunked else body
    response = http.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert str(MAX_BODY) in error_of(response, 413)["message"]
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("path", "why"), [("/v1/audio/speech", "neither hear nor speak"), ("/v1/images/generations", "make no images")]
)
def test_what_no_model_here_does_is_said(http: httpx.Client, path: str, why: str) -> None:
    response = http.post(path, json={})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_url")
    assert why in response.json()["error"]["message"]


def test_unknown_urls_and_methods_are_openai_errors(http: httpx.Client) -> None:
    unknown, wrong = http.get("/v1/nothing"), http.get("/v1/chat/completions")
    assert "/v1/nothing" in error_of(unknown, 404)["message"]
    doubled = httpx.URL(http.base_url, raw_path=b"//v1/models")
    assert "GET //v1/models" in error_of(http.get(doubled), 404)["message"]
    assert "GET" in error_of(wrong, 405)["message"]
    assert [response.json()["detail"] for response in (unknown, wrong)] == ["Not Found", "Method Not Allowed"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("code", "text", "status", "message"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, TOO_LONG, 400, TOO_LONG),
        (grpc.StatusCode.NOT_FOUND, TOO_LONG, 404, TOO_LONG),
        (grpc.StatusCode.INTERNAL, TOO_LONG, 500, TOO_LONG),
        (grpc.StatusCode.UNAVAILABLE, "no memory", 503, "The model is not available now; try again later."),
        (grpc.StatusCode.UNAVAILABLE, "m could not be woken: no /w", 503, NOT_LOADED),
    ],
)
def test_an_engine_error_before_the_first_token_has_its_http_status(
    http: httpx.Client, triton: FakeTriton, code: grpc.StatusCode, text: str, status: int, message: str, stream: bool
) -> None:
    triton.script = Script(fail_after=0, error=(code, text))
    body = {"model": MODEL, "messages": HELLO, "stream": stream}
    assert error_of(http.post("/v1/chat/completions", json=body), status)["message"] == message


def test_an_engine_error_within_a_stream_is_an_error_event(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = Script(fail_after=2)
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    text = ""
    with pytest.raises(openai.APIError, match="scripted failure"):  # noqa: PT012
        for chunk in stream:
            text += chunk.choices[0].delta.content or ""
    assert text == "The capital of France"


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_the_engine_cancelled_is_never_passed_off_as_finished(
    http: httpx.Client, triton: FakeTriton, stream: bool
) -> None:
    triton.script = Script(texts=["half"], finish_reason="cancelled")
    response = http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO, "stream": stream})
    error_of(response, 503)
    triton.script = Script(texts=["half", " a response"], finish_reason="cancelled")
    response = http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO, "stream": stream})
    assert "cancelled" not in response.text
    assert '"error"' in response.text
    assert "[DONE]" not in response.text
