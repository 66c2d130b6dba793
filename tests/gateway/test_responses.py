"""``/v1/responses``, through the real client."""

import json
from typing import Any

import openai
import pydantic
import pytest

from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script

REPLY = "The capital of France is Paris."
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
    "strict": False,
}
CALL = 'I look.<tool_call>{"name": "get_weather", "arguments": {"location": "Boston"}}</tool_call>'


def test_a_text_is_answered(client: openai.OpenAI, triton: FakeTriton) -> None:
    response = client.responses.create(model=MODEL, input="Hello", instructions="Be brief.", max_output_tokens=9)
    assert response.output_text == REPLY
    assert response.status == "completed"
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (7, 2, 9)
    inputs = triton.requests[0].inputs
    assert json.loads(inputs["messages"]) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]
    assert inputs["max_new_tokens"] == 9


def test_events_come_in_openai_s_order_and_build_the_response(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model=MODEL, input="Hello", stream=True))
    assert [event.type for event in events if event.type != "response.output_text.delta"] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == REPLY
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == REPLY
    assert last.response.usage is not None
    assert last.response.usage.output_tokens == 6


def test_the_streaming_helper_understands_it(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="Hello") as stream:
        assert stream.get_final_response().output_text == REPLY


@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_items_of_their_own(client: openai.OpenAI, triton: FakeTriton, stream: bool) -> None:
    triton.script = Script(texts=[CALL[i : i + 7] for i in range(0, len(CALL), 7)])
    response: Any
    if stream:
        with client.responses.stream(model=MODEL, input="Weather?", tools=[TOOL]) as events:
            kinds = [event.type for event in events]
            response = events.get_final_response()
        assert kinds.count("response.function_call_arguments.delta") > 1
        assert kinds.count("response.function_call_arguments.done") == 1
    else:
        response = client.responses.create(model=MODEL, input="Weather?", tools=[TOOL])
    message, call = response.output
    assert message.content[0].text == "I look."
    assert (call.type, call.name, json.loads(call.arguments)) == (
        "function_call",
        "get_weather",
        {"location": "Boston"},
    )
    assert call.call_id


def test_a_conversation_with_calls_reaches_the_template(client: openai.OpenAI, triton: FakeTriton) -> None:
    conversation: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "26"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "26."}]},
        {"role": "developer", "content": "Stay brief."},
    ]
    client.responses.create(model=MODEL, input=conversation)
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    assert json.loads(triton.requests[0].inputs["messages"]) == [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "26", "tool_call_id": "c1"},
        {"role": "assistant", "content": "26."},
        {"role": "system", "content": "Stay brief."},
    ]


def test_parse_gives_pydantic_objects(client: openai.OpenAI, triton: FakeTriton) -> None:
    class Person(pydantic.BaseModel):
        name: str

    triton.script = Script(texts=['{"name": "Ann"}'])
    assert client.responses.parse(model=MODEL, input="Who?", text_format=Person).output_parsed == Person(name="Ann")
    assert json.loads(triton.requests[0].inputs["response_format"])["type"] == "json_schema"


def test_a_response_cut_by_its_limit_is_incomplete(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = Script(finish_reason="length")
    response = client.responses.create(model=MODEL, input="Hello")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_a_failure_within_a_stream_is_an_error_event(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = Script(fail_after=1)
    kinds = []
    with pytest.raises(openai.APIError, match="scripted failure"):  # noqa: PT012
        for event in client.responses.create(model=MODEL, input="Hello", stream=True):
            kinds.append(event.type)
            if event.type == "error":
                raise openai.APIError(event.message, request=None, body=None)  # type: ignore[arg-type]
    assert "response.output_text.delta" in kinds


def test_logprobs_come_when_included(client: openai.OpenAI) -> None:
    response: Any = client.responses.create(
        model=MODEL, input="Hello", include=["message.output_text.logprobs"], top_logprobs=1
    )
    assert [entry.token for entry in response.output[0].content[0].logprobs] == ["<pad>", "a"]
