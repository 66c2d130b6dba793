"""``/v1/responses``: held against the models of OpenAI's package, through its client, and its refusals."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import running_gateway

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CALLS = "".join(f'<tool_call>{{"name": "f", "arguments": {{"x": {number}}}}}</tool_call>' for number in (1, 2))
BROKEN = '<tool_call>{"name": "f", "arguments": {"x": oops}}</tool_call>'
TOOLS = [{"type": "function", "name": name, "parameters": {"type": "object"}, "strict": False} for name in "fg"]
IMAGE = "data:image/png;base64,iVBORw0KGgo="


@pytest.fixture(scope="module")
def thinker() -> Iterator[tuple[FakeTriton, str]]:
    with (
        FakeTriton(MODEL) as fake,
        running_gateway(Settings(triton_address=fake.address, reasoning_parser="deepseek-r1")) as url,
    ):
        yield fake, url


@pytest.fixture
def respond_to(thinker: tuple[FakeTriton, str]) -> Any:
    """Answers a body, with what the model is to say."""
    fake, url = thinker
    fake.reset()

    def respond(says: str, fail_after: int | None = None, finish_reason: str = "stop", **body: Any) -> httpx.Response:
        texts = [says[i : i + 5] for i in range(0, len(says), 5)]
        fake.script = Script(texts=texts, finish_reason=finish_reason, fail_after=fail_after)
        return httpx.post(f"{url}/v1/responses", json={"model": MODEL, "input": "?"} | body, trust_env=False)

    return respond


CASES: dict[str, dict[str, Any]] = {
    "reasoning and a response": {"says": "I think.</think>It is so."},
    "calls": {"says": f"Hm.</think>I ask.{CALLS}", "tools": TOOLS},
    "one call alone": {"says": f"Hm.</think>{CALLS}", "tools": TOOLS, "parallel_tool_calls": False},
    "a broken call": {"says": f"Hm.</think>{BROKEN}", "tools": TOOLS},
    "log probabilities": {
        "says": "Hm.</think>It is.",
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
        "top_logprobs": 1,
    },
    "a response that is cut": {"says": "Hm.</think>It", "finish_reason": "length", "max_output_tokens": 3},
    "reasoning that are cut": {"says": "Hm", "finish_reason": "length"},
    "a schema": {
        "says": '{"a": 1}',
        "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}},
    },
    "all that is repeated": {
        "says": "Hm.</think>It is.",
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "reasoning": {"effort": "xhigh", "summary": "auto"},
        "tools": TOOLS,
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]},
        "max_tool_calls": 3,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "service_tier": "auto",
        "store": False,
        "stream_options": {"include_obfuscation": False},
        "truncation": "disabled",
        "user": "u",
    },
    "a freeform call": {
        "says": 'Hm.</think>So.<tool_call>{"name": "c", "arguments": {"input": "x\\ny"}}</tool_call>',
        "tools": [*TOOLS, {"type": "custom", "name": "c", "format": {"type": "text"}}],
    },
    "a failure": {"says": "I think.</think>It is so.", "fail_after": 4},
}


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the payloads of a stream of events, each of which is named as its type."""
    events = []
    for lines in response.text.strip().split("\n\n"):
        kind, payload = lines.split("\n")
        events.append(json.loads(payload.removeprefix("data: ")))
        assert kind == f"event: {events[-1]['type']}"
    return events


def without_ids(value: Any) -> Any:
    """Return a response's output without what is new each time."""
    if isinstance(value, list):
        return [without_ids(item) for item in value]
    if isinstance(value, dict):
        return {name: without_ids(item) for name, item in value.items() if name not in ("id", "call_id")}
    return value


def test_reasoning_is_its_own_summary_where_one_is_asked_for(respond_to: Any) -> None:
    says = {"says": "I think.</think>It is so.", "stream": True}
    events = events_of(respond_to(**says, reasoning={"summary": "auto"}))
    deltas = [event["delta"] for event in events if event["type"] == "response.reasoning_summary_text.delta"]
    final = events[-1]["response"]
    assert "".join(deltas) == "I think."
    assert final["output"][0]["summary"] == [{"type": "summary_text", "text": "I think."}]
    assert final["reasoning"] == {"effort": None, "summary": "auto"}
    assert not any("summary" in event["type"] for event in events_of(respond_to(**says)))


@pytest.mark.parametrize("name", CASES)
def test_every_event_is_one_of_openai_s_and_they_add_up_to_the_response(respond_to: Any, name: str) -> None:
    raw = events_of(respond_to(**CASES[name], stream=True))
    events = [EVENT.validate_python(event) for event in raw]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event["type"] for event in raw[:2]] == ["response.created", "response.in_progress"]
    final = raw[-1]["response"]
    if name not in ("a failure", "a broken call"):  # whose beginning was reported when it broke
        whole = respond_to(**CASES[name]).json()
        Response.model_validate(whole)
        assert without_ids(whole["output"]) == without_ids(final["output"])
        assert {key: whole[key] for key in whole.keys() - {"id", "output", "created_at", "completed_at", "usage"}} == {
            key: final[key] for key in final.keys() - {"id", "output", "created_at", "completed_at", "usage"}
        }
    open_items: dict[int, str] = {}
    texts: dict[tuple[str, int], str] = {}
    for event in raw:
        kind, index = event["type"], event.get("output_index", -1)
        if kind == "response.output_item.added":
            open_items[index] = event["item"]["id"]
            assert event["item"]["status"] == "in_progress"
        elif kind == "response.output_item.done":
            assert event["item"]["id"] == open_items.pop(index)
            assert event["item"] == final["output"][index]
        elif kind.endswith(".delta"):
            assert event["item_id"] == open_items[index]
            texts[kind.removesuffix(".delta"), index] = (
                texts.get((kind.removesuffix(".delta"), index), "") + event["delta"]
            )
        elif kind.endswith(("text.done", "arguments.done", "input.done")):
            (content,) = (event[name] for name in ("text", "arguments", "input") if name in event)
            assert texts.pop((kind.removesuffix(".done"), index), "") == content
    assert not open_items
    assert not texts
    parts = [
        (event["type"], event["part"]["type"]) for event in raw if event["type"].startswith("response.content_part.")
    ]
    for kind in ("reasoning_text", "output_text"):
        assert parts.count(("response.content_part.added", kind)) == parts.count(("response.content_part.done", kind))


def test_a_failure_ends_with_a_failed_response(respond_to: Any) -> None:
    raw = events_of(respond_to(**CASES["a failure"], stream=True))
    assert [event["type"] for event in raw[-2:]] == ["error", "response.failed"]
    failed = raw[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert "scripted failure" in failed["error"]["message"]
    assert failed["output"][-1]["status"] == "incomplete"


def test_all_items_of_a_conversation_reach_the_template(respond_to: Any, thinker: tuple[FakeTriton, str]) -> None:
    shown = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": IMAGE}]
    conversation = [
        {"role": "user", "content": shown[:1]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Look."}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "c", "output": shown[:1]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "refusal", "refusal": "No."}],
        },
        {"role": "developer", "content": "Go on."},
        {"role": "user", "content": "And now?"},
    ]
    assert respond_to("Hm.</think>Yes.", input=conversation).status_code == 200
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert json.loads(thinker[0].requests[-1].inputs["messages"]) == [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "Look."},
        {"role": "tool", "content": "What is it?", "tool_call_id": "c"},
        {"role": "assistant", "content": "No."},
        {"role": "system", "content": "Go on."},
        {"role": "user", "content": "And now?"},
    ]
    seen = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]
    respond_to("Hm.</think>Yes.", input=[*seen, {"type": "function_call_output", "call_id": "c", "output": shown}])
    result, images = json.loads(thinker[0].requests[-1].inputs["messages"])[-2:]
    assert result["content"].startswith("What is it?\n")
    assert [part["type"] for part in images["content"]] == ["image_url"]


@pytest.mark.parametrize(("mode", "says"), [("auto", "Hm.</think>No."), ("required", '[{"name": "g"}]')])
def test_only_the_allowed_tools_may_be_called(
    respond_to: Any, thinker: tuple[FakeTriton, str], mode: str, says: str
) -> None:
    choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "g"}]}
    assert respond_to(says, tools=TOOLS, tool_choice=choice).status_code == 200
    inputs = thinker[0].requests[-1].inputs
    assert [tool["function"]["name"] for tool in json.loads(inputs["tools"])] == ["g"]
    assert ("response_format" in inputs) == (mode == "required")


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"conversation": "c"}, "conversation", "conversation is not supported"),
        ({"background": True}, "background", "background is not supported"),
        ({"truncation": "auto"}, "truncation", "truncation is not supported"),
        ({"input": [{"type": "spell", "id": "x"}]}, "input[0]", "must be an item of one of the types message, "),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "messages",
            "documents of this type are not read",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].input_image.image_url",
            "image_url is required",
        ),
        (
            {"tools": [{"type": "web_search"}], "tool_choice": "required"},
            "tool_choice",
            "tool_choice must be about one of tools",
        ),
        (
            {
                "tools": TOOLS,
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "h"}]},
            },
            "tool_choice",
            "tool_choice must be about some of tools",
        ),
    ],
)
def test_what_is_not_done_is_refused_with_a_sentence(
    respond_to: Any, body: dict[str, Any], field: str, message: str
) -> None:
    response = respond_to("", **body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, field), response.text
    assert message in error["message"]


def test_the_tokens_of_a_prompt_are_counted_without_a_response(thinker: tuple[FakeTriton, str]) -> None:
    body = {"model": MODEL, "input": "Hello", "instructions": "Be brief.", "tools": TOOLS}
    response = httpx.post(f"{thinker[1]}/v1/responses/input_tokens", json=body, trust_env=False).json()
    assert response["object"] == "response.input_tokens"
    assert response["input_tokens"] > 0


REPLY = "The capital of France is Paris."


def test_a_text_is_answered(client: openai.OpenAI, triton: FakeTriton) -> None:
    response = client.responses.create(model=MODEL, input="Hello", instructions="Be brief.", max_output_tokens=9)
    assert response.output_text == REPLY
    assert response.status == "completed"
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (7, 2, 9)
    inputs = triton.requests[0].inputs
    assert json.loads(inputs["messages"]) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]
    assert inputs["max_new_tokens"] == 9


def test_parse_gives_pydantic_objects(client: openai.OpenAI, triton: FakeTriton) -> None:
    class Person(pydantic.BaseModel):
        name: str

    triton.script = Script(texts=['{"name": "Ann"}'])
    assert client.responses.parse(model=MODEL, input="Who?", text_format=Person).output_parsed == Person(name="Ann")
    assert json.loads(triton.requests[0].inputs["response_format"])["type"] == "json_schema"


def test_logprobs_come_when_included(client: openai.OpenAI) -> None:
    response: Any = client.responses.create(
        model=MODEL, input="Hello", include=["message.output_text.logprobs"], top_logprobs=1
    )
    assert [entry.token for entry in response.output[0].content[0].logprobs] == ["<pad>", "a"]
