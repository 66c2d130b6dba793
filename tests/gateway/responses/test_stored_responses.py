"""Responses that are continued by their ids, in memory and in a folder, by the real client."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from openai_gateway.settings import Settings
from openai_gateway.stored_responses.record import Bounds, ResponseStore, StoredResponse, item_id
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import openai_client, running_gateway

REPLY = "The capital of France is Paris."
TOOL: Any = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
CALL = 'I look.<tool_call>{"name": "get_weather", "arguments": {"location": "Boston"}}</tool_call>'


@pytest.fixture(params=["memory", "folder"])
def storing(request: pytest.FixtureRequest, triton: FakeTriton, tmp_path: Path) -> Iterator[str]:
    """A gateway with two keys."""
    folder = tmp_path / "responses" if request.param == "folder" else None
    settings = Settings(triton_address=triton.address, api_keys=("k", "other"), responses_store=folder)
    with running_gateway(settings) as url:
        yield url


@pytest.fixture
def client(storing: str) -> Iterator[openai.OpenAI]:
    with openai_client(storing, "k") as made:
        yield made


def sent(triton: FakeTriton) -> list[tuple[str, str]]:
    """Return the roles and contents of the last prompt."""
    prompt = json.loads(triton.requests[-1].inputs["messages"])
    return [(message["role"], message["content"]) for message in prompt]


def test_what_only_background_responses_have_is_refused_by_name(client: openai.OpenAI, triton: FakeTriton) -> None:
    made = client.responses.create(model=MODEL, input="Hello")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(made.id)
    with pytest.raises(openai.BadRequestError, match="stream"):
        client.responses.retrieve(made.id, stream=True)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.create(model=MODEL, input="Hello", background=True)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_0")


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_continued_by_its_id(client: openai.OpenAI, triton: FakeTriton, stream: bool) -> None:
    def create(**fields: Any) -> Any:
        if not stream:
            return client.responses.create(model=MODEL, **fields)
        return list(client.responses.create(model=MODEL, stream=True, **fields))[-1].response

    first = create(input="Hello", instructions="Be brief.", store=True)
    assert (first.store, first.previous_response_id) == (True, None)
    second = create(input=[{"role": "user", "content": "And now?"}], previous_response_id=first.id)
    assert second.previous_response_id == first.id
    # Instructions are those of one response; what was said is that of all.
    assert sent(triton) == [("user", "Hello"), ("assistant", REPLY), ("user", "And now?")]
    create(input="Last.", previous_response_id=second.id)
    assert len(sent(triton)) == 5
    create(input="Another branch.", previous_response_id=first.id)
    assert sent(triton)[2:] == [("user", "Another branch.")]


def test_calls_go_on_with_what_they_returned_alone(client: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = Script(texts=[CALL])
    first = client.responses.create(model=MODEL, input="Weather?", tools=[TOOL])
    message, call = first.output
    assert message.type == "message"
    assert call.type == "function_call"
    triton.script = Script()
    returned: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}]
    client.responses.create(model=MODEL, input=returned, tools=[TOOL], previous_response_id=first.id)
    prompt = json.loads(triton.requests[-1].inputs["messages"])
    assert [message["role"] for message in prompt] == ["user", "assistant", "tool"]
    assert (prompt[1]["content"], prompt[1]["tool_calls"][0]["id"]) == ("I look.", call.call_id)
    # as Vercel's AI SDK has it: the same by references to the items
    by_name: Any = [{"role": "user", "content": "Weather?"}]
    by_name += [{"type": "item_reference", "id": item.id} for item in (message, call)]
    client.responses.create(model=MODEL, input=[*by_name, *returned], tools=[TOOL])
    assert json.loads(triton.requests[-1].inputs["messages"]) == prompt


def test_a_stored_response_is_there_to_be_looked_at_until_it_is_deleted(client: openai.OpenAI) -> None:
    request: Any = [
        {"role": "user", "content": "One"},
        {"role": "user", "content": [{"type": "input_text", "text": "2"}]},
    ]
    made = client.responses.create(model=MODEL, input=request, metadata={"a": "b"})
    kept = client.responses.retrieve(made.id)
    assert (kept.output_text, kept.metadata, kept.usage) == (REPLY, {"a": "b"}, made.usage)
    items: Any = list(client.responses.input_items.list(made.id, limit=1))
    assert [item.content for item in items] == [[items[0].content[0]], "One"]
    assert items[0].content[0].text == "2"
    client.responses.delete(made.id)
    for gone in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            gone(made.id)
    with pytest.raises(openai.BadRequestError) as rejected:
        client.responses.create(model=MODEL, input="Go on", previous_response_id=made.id)
    assert (rejected.value.code, rejected.value.param) == ("previous_response_not_found", "previous_response_id")


def test_what_is_not_to_be_stored_is_not(client: openai.OpenAI, triton: FakeTriton) -> None:
    made = client.responses.create(model=MODEL, input="Hello", store=False)
    assert made.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    reference: Any = [{"type": "item_reference", "id": made.output[0].id}]
    with pytest.raises(openai.NotFoundError, match="Items are kept") as rejected:
        client.responses.create(model=MODEL, input=reference)
    assert rejected.value.code == "item_not_found"
    triton.script = Script(fail_after=1)
    with pytest.raises(openai.APIError):
        client.responses.create(model=MODEL, input="Hello")


def test_responses_of_another_key_are_as_if_they_were_not_there(storing: str, client: openai.OpenAI) -> None:
    made = client.responses.create(model=MODEL, input="Hello")
    with openai_client(storing, "other") as other:
        for rejected in (other.responses.retrieve, other.responses.delete):
            with pytest.raises(openai.NotFoundError):
                rejected(made.id)
        with pytest.raises(openai.BadRequestError, match="not found"):
            other.responses.create(model=MODEL, input="Go on", previous_response_id=made.id)
        reference: Any = [{"type": "item_reference", "id": made.output[0].id}]
        with pytest.raises(openai.NotFoundError):
            other.responses.create(model=MODEL, input=reference)
    assert client.responses.retrieve(made.id).id == made.id


@pytest.mark.parametrize(
    "name", ["resp_1", "../../etc/passwd", "resp_" + "0" * 31 + "/", "x" * 500, "\x00", "msg_" + "0" * 32]
)
def test_names_that_no_response_has_lead_nowhere(client: openai.OpenAI, storing: str, name: str) -> None:
    headers = {"authorization": "Bearer k"}
    for body in ({"previous_response_id": name}, {"input": [{"type": "item_reference", "id": name}]}):
        request = {"model": MODEL, "input": "Hello"} | body
        reply = httpx.post(f"{storing}/v1/responses", json=request, headers=headers, trust_env=False)
        assert reply.status_code in (400, 404), reply.text
        assert len(reply.content) < 2000


def test_another_process_goes_on_with_what_is_in_the_folder(triton: FakeTriton, tmp_path: Path) -> None:
    settings = Settings(triton_address=triton.address, responses_store=tmp_path / "kept")
    made = []
    for request in ("Hello", "And now?"):
        with running_gateway(settings) as url, openai_client(url, "k") as client:
            more: Any = {"previous_response_id": made[-1].id} if made else {}
            made.append(client.responses.create(model=MODEL, input=request, **more))
    assert sent(triton) == [("user", "Hello"), ("assistant", REPLY), ("user", "And now?")]


def test_a_folder_that_cannot_be_written_keeps_nothing_and_disturbs_no_response(
    triton: FakeTriton, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(triton_address=triton.address, responses_store=tmp_path / "file" / "kept")
    with running_gateway(settings) as url, openai_client(url, "k") as client:
        made = client.responses.create(model=MODEL, input="Hello")
    assert (made.output_text, made.store) == (REPLY, False)


def response(number: int, text: str = "") -> StoredResponse:
    name = f"resp_{number:032x}"
    return StoredResponse({"id": name, "output": [{"id": item_id("msg", name, 1), "text": text}]}, [])


class Stored:
    def __init__(self, folder: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self.date = 1e9
        for name in ("time", "monotonic"):
            monkeypatch.setattr(f"openai_gateway.stored_responses.record.time.{name}", lambda: self.date)

    def within(self, bounds: Bounds) -> ResponseStore:
        return ResponseStore(self._folder, bounds)


@pytest.fixture(params=["memory", "folder"])
def stored(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    """A factory of stores within bounds, and the date of their clock."""
    return Stored(tmp_path if request.param == "folder" else None, monkeypatch)


async def test_the_least_recently_used_make_room(stored: Stored) -> None:
    length = len(response(0, "x" * 100).encoded())
    store = stored.within(Bounds(owner_bytes=40 * length, owner_count=20, seconds=1000))
    for number in range(10):
        stored.date += 1
        assert await store.put("k", response(number, "x" * 100))
        await store.put("other", response(number))
    stored.date += 1
    assert await store.get("k", response(0).id) == response(0, "x" * 100).encoded()
    for number in range(100, 116):
        stored.date += 1
        await store.put("k", response(number, "x" * 100))
    kept = [number for number in (*range(10), *range(100, 116)) if await store.get("k", response(number).id)]
    assert kept == [0, *range(7, 10), *range(100, 116)]  # the 20 that were used last
    assert not await store.put("k", response(200, "x" * 41 * length))  # larger than all that a key may have
    assert await store.get("other", response(1).id)
    large = response(300, "x" * 30 * length)
    await store.put("k", large)
    assert await store.get("k", large.id) == large.encoded()
    assert sum([bool(await store.get("k", response(number).id)) for number in range(100, 116)]) < 11


async def test_what_was_not_used_for_a_time_is_forgotten(stored: Stored) -> None:
    store = stored.within(Bounds(owner_bytes=10_000, owner_count=10, seconds=100))
    await store.put("k", response(1))
    await store.put("k", response(2))
    stored.date += 60
    assert await store.get("k", response(1).id)
    stored.date += 60
    assert await store.get("k", response(2).id) is None
    assert await store.get("k", response(1).id)
    stored.date += 60
    await store.clean()
    stored.date -= 120  # when neither had expired
    assert await store.get("k", response(2).id) is None
    assert await store.get("k", response(1).id)


def test_a_conversation_that_no_body_could_bring_is_refused(triton: FakeTriton) -> None:
    settings = Settings(triton_address=triton.address, max_body_bytes=3000)
    with running_gateway(settings) as url, openai_client(url, "k") as client:
        first = client.responses.create(model=MODEL, input="x" * 500)
        second = client.responses.create(model=MODEL, input="x" * 1500, previous_response_id=first.id)
        with pytest.raises(openai.BadRequestError, match="longer than 3000 bytes") as rejected:
            client.responses.create(model=MODEL, input="x", previous_response_id=second.id)
    assert rejected.value.param == "previous_response_id"
