"""Fields that come together, and values that other servers take: each reaches the engine as it is meant."""

import json
from typing import Any

import httpx
import pytest

from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script

HELLO: Any = [{"role": "user", "content": "What is the weather in Boston?"}]
LOCATION = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
WEATHER: dict[str, Any] = {"name": "get_weather", "parameters": LOCATION}
DATE: dict[str, Any] = {"name": "get_date", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": function} for function in (WEATHER, DATE)]
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": LOCATION}}
CALL = '{"name": "get_weather", "arguments": {"location": "Boston"}}'
BEGUN = [*HELLO, {"role": "assistant", "content": "It is"}]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


def complete(http: httpx.Client, **fields: Any) -> Any:
    response = http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO} | fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def events(http: httpx.Client, **fields: Any) -> list[Any]:
    body = {"model": MODEL, "messages": HELLO, "stream": True} | fields
    lines = http.post("/v1/chat/completions", json=body).text.split("\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize(
    ("fields", "names", "holds_a_call"),
    [
        ({"tools": TOOLS, "tool_choice": "required", "response_format": FORMAT}, ["get_weather", "get_date"], True),
        ({"tools": TOOLS, "tool_choice": named("get_weather"), "response_format": FORMAT}, ["get_weather"], True),
        ({"tools": TOOLS, "tool_choice": allowed("required", "get_weather")}, ["get_weather"], True),
        ({"tools": TOOLS, "tool_choice": allowed("auto", "get_date")}, ["get_date"], False),
        ({"functions": [WEATHER, DATE]}, ["get_weather", "get_date"], False),
        ({"functions": [WEATHER, DATE], "function_call": {"name": "get_weather"}}, ["get_weather"], True),
        ({"functions": [WEATHER], "function_call": "none"}, [], False),
    ],
)
def test_the_tools_of_a_choice_reach_the_engine(
    http: httpx.Client, triton: FakeTriton, fields: dict[str, Any], names: list[str], holds_a_call: bool
) -> None:
    complete(http, **fields)
    inputs = triton.requests[-1].inputs
    shown = [tool["function"]["name"] for tool in json.loads(inputs.get("tools") or "[]")]
    format_sent = inputs.get("response_format") or ""
    assert ("structural_tag" in format_sent) == holds_a_call
    assert set(names) <= set(shown)
    for name in ("get_weather", "get_date"):
        assert (name in format_sent) == (holds_a_call and name in names)


def test_text_format_of_responses_goes_with_a_forced_call(http: httpx.Client, triton: FakeTriton) -> None:
    triton.script = Script(texts=[CALL])
    body = {
        "model": MODEL,
        "input": "Hi",
        "tools": [WEATHER | {"type": "function"}],
        "tool_choice": "required",
        "text": {"format": {"type": "json_schema", "name": "place", "schema": LOCATION}},
    }
    response = http.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    (call,) = response.json()["output"]
    assert (call["type"], json.loads(call["arguments"])) == ("function_call", {"location": "Boston"})
    assert "structural_tag" in triton.requests[-1].inputs["response_format"]


def test_functions_are_answered_in_their_own_form(http: httpx.Client, triton: FakeTriton) -> None:
    triton.script = Script(texts=[CALL[:30], CALL[30:]])
    fields: Any = {"functions": [WEATHER], "function_call": {"name": "get_weather"}}
    choice = complete(http, **fields)
    assert choice["finish_reason"] == "function_call"
    called = choice["message"]["function_call"]
    assert (called["name"], json.loads(called["arguments"])) == ("get_weather", {"location": "Boston"})
    assert choice["message"]["tool_calls"] is None
    streamed = [event["choices"][0] for event in events(http, **fields)]
    parts = [choice["delta"]["function_call"] for choice in streamed if "function_call" in choice["delta"]]
    assert parts[0]["name"] == "get_weather"
    assert json.loads("".join(part["arguments"] for part in parts)) == {"location": "Boston"}
    assert streamed[-1]["finish_reason"] == "function_call"
    assert not any("tool_calls" in choice["delta"] for choice in streamed)


def test_calls_of_functions_and_their_results_are_read(http: httpx.Client, triton: FakeTriton) -> None:
    call = {"name": "get_weather", "arguments": '{"location": "Boston"}'}
    messages = [{"role": "assistant", "content": None, "function_call": call}]
    messages.append({"role": "function", "name": "get_weather", "content": "Rain."})
    complete(http, messages=[*HELLO, *messages])
    _, called, result = json.loads(triton.requests[-1].inputs["messages"])
    assert called["tool_calls"][0]["function"] == call
    assert (result["role"], result["tool_call_id"]) == ("tool", called["tool_calls"][0]["id"])


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": None, "refusal": "No."}, {"content": "No."}),
        ({"refusal": "No."}, {"content": "No."}),
        ({"content": None, "reasoning_content": "So, 2"}, {"content": "", "reasoning_content": "So, 2"}),
        ({"content": None, "reasoning": "So, 2"}, {"content": "", "reasoning_content": "So, 2"}),
    ],
)
def test_an_assistant_s_message_needs_no_content(
    http: httpx.Client, triton: FakeTriton, message: dict[str, Any], expected: dict[str, Any]
) -> None:
    complete(http, messages=[*HELLO, {"role": "assistant"} | message, *HELLO])
    assert json.loads(triton.requests[-1].inputs["messages"])[1] == {"role": "assistant"} | expected


def of_chat(*messages: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {
        "messages": [*HELLO, *({"role": "assistant"} | message for message in messages), *HELLO]
    }


def of_messages(content: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "assistant", "content": content}]
    return "/v1/messages", {"max_tokens": 9, "messages": [*HELLO, *messages, *HELLO]}


def of_responses(*items: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": [*HELLO, *items, *HELLO]}


def of_ollama(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/api/chat", {"messages": [*HELLO, {"role": "assistant"} | fields, *HELLO]}


USED = {"type": "tool_use", "id": "c", "name": "f"}
CALLED = {"type": "function_call", "call_id": "c", "name": "f"}
NO_CONTENT: dict[str, Any] = {"type": "message", "role": "assistant", "content": []}
REFUSAL = {"type": "refusal", "refusal": "No."}


def calls(**function: Any) -> dict[str, Any]:
    return {"content": [], "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"} | function}]}


@pytest.mark.parametrize(
    ("requested", "content", "arguments"),
    [
        (of_chat({"content": [REFUSAL]}), "No.", None),
        (of_chat({"content": [{"type": "text", "text": "Well. "}, REFUSAL]}), "Well. No.", None),
        (of_chat({"content": [], "refusal": "No."}), "No.", None),
        (of_chat(calls()), "", {}),
        (of_chat(calls(arguments=None)), "", {}),
        (of_chat(calls(arguments="")), "", {}),
        (of_chat(calls(arguments={"a": "ü"})), "", {"a": "ü"}),
        (of_chat({"content": None, "function_call": {"name": "f"}}), "", {}),
        (of_messages([USED]), "", {}),
        (of_messages([USED | {"input": None}]), "", {}),
        (of_messages([]), None, None),
        (of_responses(NO_CONTENT, CALLED), "", {}),
        (of_responses(CALLED | {"arguments": None}), "", {}),
        (of_responses({"role": "assistant", "content": [REFUSAL]}), "No.", None),
        (of_ollama(content=None, tool_calls=[{"function": {"name": "f"}}]), "", {}),
        (of_ollama(tool_calls=[{"function": {"name": "f", "arguments": None}}]), "", {}),
    ],
)
def test_what_the_assistant_said_may_have_any_api_s_empty_form(
    http: httpx.Client, triton: FakeTriton, requested: Any, content: str | None, arguments: Any
) -> None:
    path, body = requested
    response = http.post(path, json={"model": MODEL} | body)
    assert response.status_code == 200, response.text
    messages = [
        message for message in json.loads(triton.requests[-1].inputs["messages"]) if message["role"] == "assistant"
    ]
    assert [message["content"] for message in messages] == ([] if content is None else [content])
    if arguments is not None:
        (call,) = messages[0]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("f", arguments)


@pytest.mark.parametrize(
    ("path", "content"),
    [("/v1/chat/completions", []), ("/v1/chat/completions", [REFUSAL]), ("/v1/messages", []), ("/v1/responses", [])],
)
def test_what_the_user_said_may_not(http: httpx.Client, path: str, content: Any) -> None:
    messages = [{"role": "user", "content": content}]
    response = http.post(path, json={"model": MODEL, "max_tokens": 9, "messages": messages, "input": messages})
    assert response.status_code == 400
    assert "content" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"top_p": 0}, (1.0, 1)),
        ({"top_p": 0, "top_k": 7}, (1.0, 1)),
        ({"top_k": -1}, (1.0, 0)),
        ({"top_k": 0, "top_p": 0.5}, (0.5, 0)),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_sampling_values_that_turn_a_filter_off(
    http: httpx.Client, triton: FakeTriton, path: str, fields: dict[str, Any], expected: tuple[float, int]
) -> None:
    requested = {"messages": HELLO} if "chat" in path else {"prompt": "Hi"}
    response = http.post(path, json={"model": MODEL} | requested | fields)
    assert response.status_code == 200, response.text
    inputs = triton.requests[-1].inputs
    assert (inputs["top_p"], inputs["top_k"]) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"continue_final_message": True, "add_generation_prompt": False}, {"continue_final_message": True}),
        ({"continue_final_message": True}, {"continue_final_message": True}),
        ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
        ({"chat_template_kwargs": {"continue_final_message": True}}, {"continue_final_message": True}),
    ],
)
def test_who_speaks_next_is_said_at_the_top_or_to_the_template(
    http: httpx.Client, triton: FakeTriton, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    complete(http, messages=BEGUN, **fields)
    given = json.loads(triton.requests[-1].inputs["messages"])["chat_template_kwargs"]
    assert given.items() >= expected.items()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("shown", "stopped", "expected"), [(True, "END", "Paris.END"), (True, "</s>", "Paris."), (False, "END", "Paris.")]
)
def test_a_stop_string_is_part_of_the_text_where_that_is_asked_for(
    http: httpx.Client, triton: FakeTriton, stream: bool, shown: bool, stopped: str, expected: str
) -> None:
    triton.script = Script(texts=["Pa", "ris."], stop_string=stopped)
    fields = {"stop": ["END"], "include_stop_str_in_output": shown}
    if stream:
        parts = [event["choices"][0]["delta"].get("content") or "" for event in events(http, **fields)]
        assert "".join(parts) == expected
    else:
        assert complete(http, **fields)["message"]["content"] == expected
    response = http.post("/v1/completions", json={"model": MODEL, "prompt": "Hi"} | fields)
    assert response.json()["choices"][0]["text"] == expected
    assert ("stop_string" in triton.requests[-1].outputs) == shown  # each output costs time at every token


def test_allowed_tokens_are_a_grammar(http: httpx.Client, triton: FakeTriton) -> None:
    complete(http, allowed_token_ids=[5, 9, 5])
    tag = json.loads(triton.requests[-1].inputs["response_format"])["structural_tag"]
    assert [element["token"] for element in tag["content"]["elements"]] == [5, 9]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": TOOLS, "functions": [WEATHER]}, "functions and function_call cannot be combined with tools"),
        ({"function_call": {"name": "get_date"}}, "function_call needs functions"),
        ({"functions": [WEATHER], "function_call": {"name": "get_date"}}, "function_call must name one of functions"),
        ({"tools": TOOLS, "tool_choice": allowed("auto", "fly")}, "tool_choice must name some of tools, got 'fly'"),
        ({"tools": TOOLS, "tool_choice": named("fly")}, "tool_choice must"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt must be false"),
        ({"guided_grammar": "a", "structured_outputs": {"grammar": "b"}}, "only one can be given"),
        ({"allowed_token_ids": [1], "response_format": FORMAT}, "only one can be given"),
        ({"messages": [{"role": "user", "content": None, "refusal": "No."}]}, "content is required"),
    ],
)
def test_what_contradicts_itself_is_refused(http: httpx.Client, fields: dict[str, Any], words: str) -> None:
    response = http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO} | fields)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_every_event_counts_the_tokens_so_far_where_that_is_asked_for(
    http: httpx.Client, triton: FakeTriton, path: str
) -> None:
    triton.script = Script(texts=['"usage":null,"choices":', "b", "c"])
    body: dict[str, Any] = {"model": MODEL, "messages": HELLO, "prompt": "Hi", "stream": True}
    body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    lines = http.post(path, json=body).text.split("\n\n")
    streamed = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    counts = [event["usage"]["completion_tokens"] for event in streamed]
    assert counts == sorted(counts)
    first = 0 if "chat" in path else 2  # of a chat, the event before the first token
    assert [*dict.fromkeys(counts)] == [*dict.fromkeys((first, 2, 4, 6))]
    assert {event["usage"]["prompt_tokens"] for event in streamed} == {7}
    assert streamed[-1]["choices"] == []
    texts = [
        choice["delta"].get("content") or "" if "delta" in choice else choice["text"]
        for event in streamed
        for choice in event["choices"]
    ]
    assert "".join(texts) == "".join(triton.script.texts)
    body["stream_options"] = {"continuous_usage_stats": True}  # as in vLLM, nothing without include_usage
    assert '"usage"' not in http.post(path, json=body | {"messages": HELLO}).text.replace('\\"usage', "")
