"""Tools, through the real client."""

import json
from typing import Any

import openai
import pydantic
import pytest

from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import openai_client, running_gateway

HELLO: Any = [{"role": "user", "content": "What is the weather in Boston?"}]
PARAMETERS = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
DATE: Any = {"type": "function", "function": {"name": "get_date", "description": "Today."}}
CALLS = (
    'Let me see.<tool_call>\n{"name": "get_weather", "arguments": {"location": "Boston"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_date", "arguments": {}}\n</tool_call>'
)


def test_calls_come_back_with_ids_and_arguments(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = Script(texts=[CALLS])
    response = client.chat.completions.create(model=MODEL, messages=HELLO, tools=[WEATHER, DATE])
    (choice,) = response.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    calls: Any = choice.message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("get_weather", {"location": "Boston"}),
        ("get_date", {}),
    ]
    assert len({call.id for call in calls}) == 2
    inputs = triton.requests[0].inputs
    assert [tool["function"]["name"] for tool in json.loads(inputs["tools"])] == ["get_weather", "get_date"]
    assert inputs["skip_special_tokens"] is False


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_at_a_time_when_parallel_calls_are_off(
    client: openai.OpenAI, triton: FakeTriton, stream: bool
) -> None:
    triton.script = Script(texts=[CALLS])
    options: Any = {"model": MODEL, "messages": HELLO, "tools": [WEATHER, DATE], "parallel_tool_calls": False}
    if stream:
        with client.chat.completions.stream(**options) as chunks:
            message: Any = chunks.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(**options).choices[0].message
    assert [call.function.name for call in message.tool_calls] == ["get_weather"]


BREAKS = '<tool_call>{"name": "get_weather", "arguments": {"location": {"city": "Boston"}, "days": 3'


@pytest.mark.parametrize("end", [', "unit": }}</tool_call>', "}} and so on", ""])
@pytest.mark.parametrize("strict", [False, True])
def test_a_call_that_breaks_after_its_first_arguments_is_text_and_does_not_trouble_the_streaming_helper(
    client: openai.OpenAI, triton: FakeTriton, end: str, strict: bool
) -> None:
    response = BREAKS + end
    triton.script = Script(texts=[response[i : i + 4] for i in range(0, len(response), 4)])
    tool: Any = {"type": "function", "function": {**WEATHER["function"], "strict": strict}}
    with client.chat.completions.stream(model=MODEL, messages=HELLO, tools=[tool]) as stream:
        choice: Any = stream.get_final_completion().choices[0]
    assert (choice.finish_reason, choice.message.content) == ("stop", response)
    if strict:  # the helper decodes their arguments: a call that cannot be must not begin
        assert choice.message.tool_calls is None
    else:
        (call,) = choice.message.tool_calls
        assert response[response.index('{"location') :].startswith(call.function.arguments)
        with pytest.raises(ValueError, match="line 1"):
            json.loads(call.function.arguments)
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, tools=[tool]).choices[0]
    assert (whole.finish_reason, whole.message.content, whole.message.tool_calls) == ("stop", response, None)


def test_arguments_of_a_strict_tool_stream_when_the_call_is_forced(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = Script(texts=['{"name": "get_weather", ', '"arguments": {"location"', ': "Boston"}}'])
    tool: Any = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    options: Any = {"model": MODEL, "messages": HELLO, "tools": [tool], "tool_choice": "required"}
    with client.chat.completions.stream(**options) as stream:
        deltas = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or []
    assert len(deltas) > 1
    assert call.function.parsed_arguments == {"location": "Boston"}


def test_tools_that_may_not_be_used_are_not_shown_to_the_model(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = Script(texts=[CALLS])
    response = client.chat.completions.create(model=MODEL, messages=HELLO, tools=[WEATHER], tool_choice="none")
    assert response.choices[0].message.content == CALLS
    assert "tools" not in triton.requests[0].inputs


def test_a_forced_call_is_constrained_by_the_schema_and_parsed(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = Script(texts=['{"name": "get_weather", ', '"arguments": {"location": "Boston"}}'])
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ("required", named):
        response = client.chat.completions.create(
            model=MODEL, messages=HELLO, tools=[WEATHER, DATE], tool_choice=choice
        ).choices[0]
        assert response.finish_reason == "tool_calls"
        (call,) = response.message.tool_calls or []
        assert call.type == "function"
        assert json.loads(call.function.arguments) == {"location": "Boston"}
    required, only = (json.loads(request.inputs["response_format"]) for request in triton.requests)
    assert len(required["structural_tag"]["elements"]) == 2
    assert only["structural_tag"]["content"] == {"type": "json_schema", "json_schema": PARAMETERS}  # as it came


def test_the_response_and_a_tool_s_result_can_be_sent_back(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = Script(texts=[CALLS])
    message = client.chat.completions.create(model=MODEL, messages=HELLO, tools=[WEATHER, DATE]).choices[0].message
    calls: Any = message.tool_calls
    results = [{"role": "tool", "content": "26", "tool_call_id": call.id} for call in calls]
    client.chat.completions.create(model=MODEL, messages=[*HELLO, message, *results], tools=[WEATHER, DATE])
    sent = json.loads(triton.requests[1].inputs["messages"])
    assert [call["id"] for call in sent[1]["tool_calls"]] == [result["tool_call_id"] for result in sent[2:]]


def test_parse_gives_pydantic_objects(client: openai.OpenAI, triton: FakeTriton) -> None:
    class Person(pydantic.BaseModel):
        name: str
        age: int

    triton.script = Script(texts=['{"name": "Ann",', ' "age": 30}'])
    response = client.chat.completions.parse(model=MODEL, messages=HELLO, response_format=Person)
    assert response.choices[0].message.parsed == Person(name="Ann", age=30)
    schema = json.loads(triton.requests[0].inputs["response_format"])["json_schema"]["schema"]
    assert set(schema["properties"]) == {"name", "age"}


@pytest.mark.parametrize("stream", [False, True])
def test_the_format_of_the_model_may_be_named(stream: bool) -> None:
    with FakeTriton(MODEL) as fake:
        settings = Settings(triton_address=fake.address, tool_call_parser="deepseek-v3")
        call = '<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"location": "Boston"}<｜tool▁call▁end｜>'
        fake.script = Script(texts=["<tool_call>", call])
        requested: Any = {"model": MODEL, "messages": HELLO, "tools": [WEATHER]}
        with running_gateway(settings) as url, openai_client(url) as client:
            if stream:
                with client.chat.completions.stream(**requested) as events:
                    message: Any = events.get_final_completion().choices[0].message
            else:
                message = client.chat.completions.create(**requested).choices[0].message
            flat: Any = {"type": "function", **WEATHER["function"]}
            arguments = client.responses.create(model=MODEL, input="?", tools=[flat])
    assert message.content == "<tool_call>"
    assert [made.function.arguments for made in message.tool_calls] == ['{"location": "Boston"}']
    assert [item.arguments for item in arguments.output if item.type == "function_call"] == ['{"location": "Boston"}']
