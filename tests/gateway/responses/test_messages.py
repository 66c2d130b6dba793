"""Anthropic's own client works unmodified: responses, streams, tools, reasoning, images, errors."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import anthropic.types.beta as memory
import httpx
import pydantic
import pytest

from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import CONTEXT_LEN, FakeTriton, Script
from tests.support.gateways import running_gateway

MESSAGES: Any = [{"role": "user", "content": "What is the weather in Boston?"}]
SCHEMA = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
WEATHER: Any = {"name": "get_weather", "description": "Now.", "input_schema": SCHEMA}
USED: Any = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"location": "Boston"}}
CALL = 'Let me see.<tool_call>\n{"name": "get_weather", "arguments": {"location": "Boston"}}\n</tool_call>'


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[FakeTriton, str]]:
    """A gateway whose model marks its reasoning, and which wants a key."""
    with FakeTriton(MODEL) as fake:
        settings = Settings(triton_address=fake.address, reasoning_parser="qwen3", api_keys=("secret",))
        with running_gateway(settings) as url:
            yield fake, url


@pytest.fixture
def claude(triton: FakeTriton, url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="secret", max_retries=0) as client:
        yield client


def sent(triton: FakeTriton) -> Any:
    return json.loads(triton.requests[-1].inputs["messages"])


def test_a_response_with_a_system_prompt(claude: anthropic.Anthropic, triton: FakeTriton) -> None:
    more = {"temperature": 0.5, "top_k": 3}
    request: Any = {"model": MODEL, "max_tokens": 33, "system": "Be brief.", "messages": MESSAGES}
    response = claude.messages.create(**request, stop_sequences=["END"], extra_body=more)
    (text,) = response.content
    assert (text.type, response.stop_reason, response.role) == ("text", "end_turn", "assistant")
    assert text.type == "text"
    assert text.text == "The capital of France is Paris."
    assert (response.usage.input_tokens, response.usage.output_tokens) == (7, 2)  # as the engine reports
    assert sent(triton) == [{"role": "system", "content": "Be brief."}, *MESSAGES]
    inputs = triton.requests[-1].inputs
    assert (inputs["max_new_tokens"], inputs["top_k"], inputs["stop_words"]) == (33, 3, ["END"])
    assert inputs["temperature"] == pytest.approx(0.5)


def test_a_stream_builds_the_same_message(claude: anthropic.Anthropic, triton: FakeTriton) -> None:
    whole = claude.messages.create(model=MODEL, max_tokens=9, messages=MESSAGES)
    with claude.messages.stream(model=MODEL, max_tokens=9, messages=MESSAGES) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(texts) == 3
    for message in (whole, final):
        assert [block.text for block in message.content if block.type == "text"] == ["".join(texts)]
    assert (final.stop_reason, final.usage.input_tokens) == (whole.stop_reason, whole.usage.input_tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_the_cache_are_counted_apart(claude: anthropic.Anthropic, triton: FakeTriton, stream: bool) -> None:
    triton.script = Script(input_token_len=7, cached_token_len=4)
    request: Any = {"model": MODEL, "max_tokens": 9, "messages": MESSAGES}
    if stream:
        with claude.messages.stream(**request) as events:
            (last,) = (event.usage for event in events if event.type == "message_delta")
            assert (last.cache_creation_input_tokens, last.cache_read_input_tokens) == (0, 4)
            usage = events.get_final_message().usage
    else:
        usage = claude.messages.create(**request).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (3, 4, 0)


def test_a_response_that_is_cut_off_says_so(claude: anthropic.Anthropic, triton: FakeTriton) -> None:
    triton.script = Script(finish_reason="length")
    # the fake engine says that it wrote two tokens: the limit, or less than that where the context is full
    assert claude.messages.create(model=MODEL, max_tokens=2, messages=MESSAGES).stop_reason == "max_tokens"
    full = claude.messages.create(model=MODEL, max_tokens=3, messages=MESSAGES)
    assert str(full.stop_reason) == "model_context_window_exceeded"


@pytest.mark.parametrize(("reported", "expected"), [("END", ("stop_sequence", "END")), ("</s>", ("end_turn", None))])
def test_of_stop_sequences_the_one_that_ended_the_response_is_reported_and_the_templates_own_is_not(
    claude: anthropic.Anthropic, triton: FakeTriton, reported: str, expected: tuple[str, str | None]
) -> None:
    triton.script = Script(stop_string=reported)
    request: Any = {"model": MODEL, "max_tokens": 9, "messages": MESSAGES, "stop_sequences": ["no", "END"]}
    whole = claude.messages.create(**request)
    with claude.messages.stream(**request) as stream:
        final = stream.get_final_message()
    assert [(message.stop_reason, message.stop_sequence) for message in (whole, final)] == [expected] * 2
    del request["stop_sequences"]
    assert claude.messages.create(**request).stop_sequence is None
    assert "stop_string" not in triton.requests[-1].outputs  # each output costs time at every token


@pytest.mark.parametrize("size", [3, 1000])
def test_a_call_and_its_result(claude: anthropic.Anthropic, triton: FakeTriton, size: int) -> None:
    triton.script = Script(texts=[CALL[i : i + size] for i in range(0, len(CALL), size)])
    with claude.messages.stream(model=MODEL, max_tokens=99, messages=MESSAGES, tools=[WEATHER]) as stream:
        first = stream.get_final_message()
    assert first.stop_reason == "tool_use"
    text, call = first.content
    assert text.type == "text"
    assert text.text == "Let me see."
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("get_weather", {"location": "Boston"})
    assert json.loads(triton.requests[-1].inputs["tools"])[0]["function"]["parameters"] == SCHEMA
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Rain."}]}
    turns: Any = [*MESSAGES, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    triton.script = Script()
    claude.messages.create(model=MODEL, max_tokens=99, messages=turns, tools=[WEATHER])
    _, answered, returned = sent(triton)
    assert json.loads(answered["tool_calls"][0]["function"]["arguments"]) == {"location": "Boston"}
    assert returned == {"role": "tool", "tool_call_id": call.id, "content": "Rain."}


COMMANDS: dict[str, Any] = {
    "view": memory.BetaMemoryTool20250818ViewCommand,
    "create": memory.BetaMemoryTool20250818CreateCommand,
    "str_replace": memory.BetaMemoryTool20250818StrReplaceCommand,
    "insert": memory.BetaMemoryTool20250818InsertCommand,
    "delete": memory.BetaMemoryTool20250818DeleteCommand,
    "rename": memory.BetaMemoryTool20250818RenameCommand,
}


@pytest.mark.parametrize(
    ("kind", "name", "commands"),
    [
        ("bash_20250124", "bash", None),
        ("text_editor_20250728", "str_replace_based_edit_tool", list(COMMANDS)[:4]),
        ("text_editor_20250124", "str_replace_editor", [*list(COMMANDS)[:4], "undo_edit"]),
        ("memory_20250818", "memory", list(COMMANDS)),
    ],
)
def test_a_tool_that_the_client_runs_is_offered_with_its_parameters(
    claude: anthropic.Anthropic, triton: FakeTriton, kind: str, name: str, commands: list[str] | None
) -> None:
    tool: Any = {"type": kind, "name": name, "cache_control": {"type": "ephemeral"}}
    triton.script = Script(texts=[CALL.replace("get_weather", name)])
    _, call = claude.messages.create(model=MODEL, max_tokens=99, messages=MESSAGES, tools=[tool]).content
    assert call.type == "tool_use"
    assert call.name == name
    (shown,) = json.loads(triton.requests[-1].inputs["tools"])
    parameters = shown["function"]["parameters"]
    assert parameters["properties"]["command"].get("enum") == commands
    if commands is None:
        assert list(parameters["properties"]) == ["command", "restart"]
    elif "undo_edit" not in commands:  # as the package's own types name and require them
        types = [COMMANDS[command].model_fields for command in commands]
        required = [{name for name, field in fields.items() if field.is_required()} for fields in types]
        assert parameters["properties"].keys() == {name for fields in types for name in fields}
        assert set(parameters["required"]) == set.intersection(*required)


def test_a_call_that_is_forced_is_held_to_its_schema(claude: anthropic.Anthropic, triton: FakeTriton) -> None:
    triton.script = Script(texts=('{"name": "get_weather", "arguments": {"location": "Boston"}}',))
    forced: Any = {"type": "tool", "name": "get_weather"}
    response = claude.messages.create(
        model=MODEL, max_tokens=99, messages=MESSAGES, tools=[WEATHER], tool_choice=forced
    )
    assert [block.type for block in response.content] == ["tool_use"]
    form = json.loads(triton.requests[-1].inputs["response_format"])
    assert form["structural_tag"]["elements"][-1]["begin"] == '<tool_call>\n{"name": "get_weather", "arguments": '


def test_reasoning_has_blocks_of_its_own_and_can_be_left_out(claude: anthropic.Anthropic, triton: FakeTriton) -> None:
    triton.script = Script(texts=("<think>Two", " and two.</th", "ink>\n\nFour."))
    enabled: Any = {"type": "enabled", "budget_tokens": 1024}
    with claude.messages.stream(model=MODEL, max_tokens=9, messages=MESSAGES, thinking=enabled) as stream:
        reasoning, text = stream.get_final_message().content
    assert reasoning.type == "thinking"
    assert (reasoning.thinking, text.type) == ("Two and two.", "text")
    whole = claude.messages.create(model=MODEL, max_tokens=9, messages=MESSAGES, thinking=enabled)
    assert reasoning.signature
    assert whole.content[0] == reasoning
    assert sent(triton)["chat_template_kwargs"] == {"enable_thinking": True, "thinking": True}
    response = claude.messages.create(model=MODEL, max_tokens=9, messages=MESSAGES, thinking={"type": "disabled"})
    assert [block.type for block in response.content] == ["text"]
    turns: Any = [*MESSAGES, {"role": "assistant", "content": [reasoning, text]}, *MESSAGES]
    claude.messages.create(model=MODEL, max_tokens=9, messages=turns)
    assert sent(triton)[1] == {"role": "assistant", "content": "Four.", "reasoning_content": "Two and two."}


def test_images_are_those_of_chat_completions(claude: anthropic.Anthropic, triton: FakeTriton) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    content: Any = [{"type": "image", "source": source}, {"type": "text", "text": "What is it?"}]
    claude.messages.create(model=MODEL, max_tokens=9, messages=[{"role": "user", "content": content}])
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert sent(triton)[0]["content"] == [shown, {"type": "text", "text": "What is it?"}]


def test_what_claude_code_sends_is_taken_in_its_order(triton: FakeTriton, url: str) -> None:
    """The fields and roles of a turn of Claude Code 2.1, headless: reminders are system messages in between."""
    body: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 32000,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1f2e3;"},
            {"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>It is Monday.</system-reminder>\n\n"},
                    {"type": "text", "text": "Weather?", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
                ],
            },
            {"role": "system", "content": "There are two agents."},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, USED]},
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "Rain."}]}
                ],
            },
            {"role": "system", "content": [{"type": "text", "text": "Be quick."}]},
        ],
        "tools": [WEATHER | {"cache_control": {"type": "ephemeral"}, "eager_input_streaming": True}],
        "metadata": {"user_id": '{"session_id": "1"}'},
        "thinking": {"type": "adaptive", "display": "summarized"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
    }
    headers = {"anthropic-beta": "claude-code-20250219,context-management-2025-06-27", "x-api-key": "secret"}
    for stream in (False, True):
        response = httpx.post(
            f"{url}/v1/messages?beta=true", json=body | {"stream": stream}, headers=headers, trust_env=False
        )
        assert response.status_code == 200, response.text
    reported = sent(triton)
    assert reported["chat_template_kwargs"] == {"reasoning_effort": "high"}
    assert [(message["role"], message["content"]) for message in reported["messages"]] == [
        ("system", "You help."),
        ("user", "<system-reminder>It is Monday.</system-reminder>\n\nWeather?"),
        ("system", "There are two agents."),
        ("assistant", ""),
        ("tool", "Rain."),
        ("system", "Be quick."),
    ]
    assert reported["messages"][3]["reasoning_content"] == "Hm."
    assert triton.requests[-1].inputs["max_new_tokens"] == CONTEXT_LEN  # no context holds 32,000
    counted = {name: body[name] for name in ("model", "system", "messages", "tools", "thinking", "output_config")}
    count = httpx.post(f"{url}/v1/messages/count_tokens?beta=true", json=counted, headers=headers, trust_env=False)
    assert count.json()["input_tokens"] > 0


def test_a_message_that_was_begun_goes_on(claude: anthropic.Anthropic, triton: FakeTriton) -> None:
    triton.script = Script(texts=(" is Ann.",))
    begun: Any = [*MESSAGES, {"role": "assistant", "content": [{"type": "text", "text": "It"}]}]
    response = claude.messages.create(model=MODEL, max_tokens=9, messages=begun)
    assert [block.type for block in response.content] == ["text"]  # the prompt has left no room for reasoning
    reported = sent(triton)
    assert reported["chat_template_kwargs"] == {"continue_final_message": True}
    assert reported["messages"][-1] == {"role": "assistant", "content": "It"}
    # where there is nothing that could continue, the next message is a new one
    claude.messages.create(model=MODEL, max_tokens=9, messages=[*MESSAGES, {"role": "assistant", "content": ""}])
    assert sent(triton) == MESSAGES


def test_documents_and_search_results_are_texts(claude: anthropic.Anthropic, triton: FakeTriton) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Ann is 30."}
    inner = {"type": "content", "content": [{"type": "text", "text": "Bob is 31."}]}
    found = {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "Cy is 32."}]}
    turns: Any = [
        {"type": "document", "title": "Ages", "context": "Of 2024.", "source": source, "citations": {"enabled": True}},
        {"type": "document", "source": inner},
        {"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {"query": "q"}},
        {"type": "text", "text": "Who is older?"},
    ]
    results: Any = [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [found]}]
    messages: Any = [
        {"role": "user", "content": turns},
        {"role": "assistant", "content": [USED]},
        {"role": "user", "content": results},
    ]
    claude.messages.create(model=MODEL, max_tokens=9, messages=messages)
    first, _, returned = sent(triton)
    assert first["content"] == (
        "<document>\n<title>Ages</title>\n<context>Of 2024.</context>\nAnn is 30.\n</document>\n"
        "<document>\nBob is 31.\n</document>\nWho is older?"
    )
    assert returned["content"] == (
        "<search_result>\n<title>t</title>\n<source>s</source>\nCy is 32.\n</search_result>\n"
    )


def test_tokens_are_counted_without_a_response(claude: anthropic.Anthropic, triton: FakeTriton) -> None:
    count = claude.messages.count_tokens(model=MODEL, messages=MESSAGES, tools=[WEATHER]).input_tokens
    assert count > 0
    assert triton.requests == []


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"model": "nobody"}, "does not exist"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [*MESSAGES, {"role": "assistant", "content": [USED]}]}, "must not end with a call"),
        ({"tools": [{"type": "custom", "name": "f"}]}, "input_schema is required"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "web_search_20250305 are not run by this server",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "url", "url": "u"}}]}]},
            "The PDF specified was not valid: documents of this type are not read by this server; send their text",
        ),
        ({"tool_choice": {"type": "any"}}, "one of tools"),
    ],
)
def test_what_cannot_be_answered_is_an_error_of_the_clients_kind(
    claude: anthropic.Anthropic, changes: dict[str, Any], reported: str
) -> None:
    error, kind = anthropic.BadRequestError, "invalid_request_error"
    if "model" in changes:
        error, kind = anthropic.NotFoundError, "not_found_error"
    request: Any = {"model": MODEL, "max_tokens": 9, "messages": MESSAGES} | changes
    with pytest.raises(error, match=reported) as rejected:
        claude.messages.create(**request)
    body: Any = rejected.value.body
    assert (body["type"], body["error"]["type"]) == ("error", kind)


def test_a_wrong_key_is_an_authentication_error(triton: FakeTriton, url: str) -> None:
    with (
        anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError),
    ):
        client.messages.create(model=MODEL, max_tokens=9, messages=MESSAGES)


def test_a_stream_that_fails_ends_with_an_error_event(claude: anthropic.Anthropic, triton: FakeTriton) -> None:
    triton.script = Script(fail_after=1)
    with (
        pytest.raises(anthropic.APIError, match="scripted failure"),
        claude.messages.stream(model=MODEL, max_tokens=9, messages=MESSAGES) as stream,
    ):
        list(stream)


def test_events_are_those_of_the_published_protocol(triton: FakeTriton, url: str) -> None:
    body = {"model": MODEL, "max_tokens": 9, "messages": MESSAGES, "stream": True}
    headers = {"x-api-key": "secret", "anthropic-version": "2023-06-01"}
    reported = httpx.post(f"{url}/v1/messages", json=body, headers=headers, trust_env=False).text
    kinds = [line.removeprefix("event: ") for line in reported.splitlines() if line.startswith("event: ")]
    deltas = ["content_block_delta"] * 3
    assert kinds == [
        "message_start", "content_block_start", *deltas, "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip


def schemas_in(grammar: Any) -> list[Any]:
    """Return the schemas that a structural tag has content of."""
    if isinstance(grammar, list):
        return [schema for part in grammar for schema in schemas_in(part)]
    if not isinstance(grammar, dict):
        return []
    if grammar.get("type") == "json_schema":
        return [grammar["json_schema"]]
    return schemas_in([*grammar.values()])


@pytest.mark.parametrize("option", ["output_config", "output_format", "parse"])
def test_a_json_schema_holds_the_response(claude: anthropic.Anthropic, triton: FakeTriton, option: str) -> None:
    class Location(pydantic.BaseModel):
        location: str

    triton.script = Script(texts=['{"location": ', '"Boston"}'])
    request: Any = {"model": MODEL, "max_tokens": 33, "messages": MESSAGES}
    options: Any = {"type": "json_schema", "schema": SCHEMA}
    if option == "parse":
        assert claude.messages.parse(**request, output_format=Location).parsed_output == Location(location="Boston")
    else:
        body = {"output_config": {"format": options}} if option == "output_config" else {"output_format": options}
        (text,) = claude.messages.create(**request, extra_body=body).content
        assert text.type == "text"
        assert text.text == '{"location": "Boston"}'
    (schema,) = schemas_in(json.loads(triton.requests[-1].inputs["response_format"]))
    assert (list(schema["properties"]), schema["required"]) == (["location"], ["location"])
    assert schema == SCHEMA or option == "parse"


UNIQUE: Any = {"type": "array", "uniqueItems": True}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"output_format": {"type": "json_schema"}}, "schema"),
        ({"output_format": {"type": "poem", "schema": {}}}, "json_schema"),
        (
            {"tools": [WEATHER | {"strict": True, "input_schema": SCHEMA | {"properties": {"x": UNIQUE}}}]},
            "#/properties/x/uniqueItems",
        ),
        (
            {
                "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
                "messages": [*MESSAGES, {"role": "assistant", "content": "{"}],
            },
            "must not end with the assistant's",
        ),
    ],
)
def test_a_schema_that_is_not_enforced_is_refused(url: str, fields: dict[str, Any], path: str) -> None:
    body = {"model": MODEL, "max_tokens": 9, "messages": MESSAGES} | fields
    response = httpx.post(f"{url}/v1/messages", json=body, headers={"x-api-key": "secret"})
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")
    assert path in response.json()["error"]["message"]


def test_forced_calls_are_held_to_what_is_enforced(claude: anthropic.Anthropic, triton: FakeTriton) -> None:
    triton.script = Script(texts=[CALL.removeprefix("Let me see.")])
    loose = WEATHER | {"input_schema": SCHEMA | {"properties": SCHEMA["properties"] | {"days": UNIQUE}}}
    for tool in (WEATHER | {"strict": True}, loose):
        choice: Any = {"type": "any"}
        claude.messages.create(model=MODEL, max_tokens=9, messages=MESSAGES, tools=[tool], tool_choice=choice)
        (schema,) = schemas_in(json.loads(triton.requests[-1].inputs["response_format"]))
        assert (schema["required"], schema["properties"]["location"]) == (["location"], {"type": "string"})
    assert schema["properties"]["days"] == {"type": "array"}
