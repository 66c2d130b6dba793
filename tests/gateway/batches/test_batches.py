"""Batches: a result for each row, and turns that they leave to callers."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from openai_gateway.batches.store import Limits, Store
from openai_gateway.batches.work import Slots
from openai_gateway.gateway import BATCH_PRIORITY
from openai_gateway.middleware.internal_requests import OpenRequests
from openai_gateway.settings import Settings
from tests.gateway.batches.conftest import LIMITS, jsonl, request, results, wait_for
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Received, Script
from tests.support.gateways import openai_client, running_gateway
from tests.support.waiting import eventually, eventually_sync


def begin(client: openai.OpenAI, content: bytes, **more: object) -> openai.types.Batch:
    file = client.files.create(file=("requests.jsonl", content), purpose="batch")
    requested = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **more}
    return client.batches.create(input_file_id=file.id, **requested)  # type: ignore[arg-type]


def echo(received: Received) -> Script:
    """Respond to each request with its own prompt."""
    return Script(texts=(received.inputs["messages"],))


def test_each_row_gets_the_response_that_a_request_gets(ann: openai.OpenAI, triton: FakeTriton) -> None:
    triton.script = echo
    made = begin(ann, jsonl(*(request(f"request {n}", f"question {n}") for n in range(40))), metadata={"for": "us"})
    assert (made.object, made.status, made.metadata) == ("batch", "validating", {"for": "us"})
    done = wait_for(ann, made.id)
    assert (done.status, done.error_file_id, done.errors) == ("completed", None, None)
    assert done.request_counts.model_dump() == {"total": 40, "completed": 40, "failed": 0}
    assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at < done.expires_at  # type: ignore[operator]
    found = results(ann, done.output_file_id)
    assert found.keys() == {f"request {n}" for n in range(40)}
    for number in range(40):
        line = found[f"request {number}"]
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        assert line["response"]["request_id"].startswith("req_")
        response = openai.types.chat.ChatCompletion.model_validate(line["response"]["body"])
        assert f"question {number}" in (response.choices[0].message.content or "")
        assert response.model == MODEL
    assert len(triton.requests) == 40
    output = ann.files.retrieve(done.output_file_id or "")
    assert (output.purpose, output.filename) == ("batch_output", f"{done.id}_output.jsonl")


def test_a_row_that_is_wrong_is_an_error_of_its_own(ann: openai.OpenAI, triton: FakeTriton) -> None:
    wrong: list[Any] = ["{", "[1]", {**request("x"), "custom_id": 7}]
    named = {
        "method": request("method", method="GET"),
        "other url": request("other url", url="/v1/completions"),
        "no url": request("no url", url="/v1/images"),
        "body": request("body") | {"body": "text"},
        "stream": request("stream", body={"stream": True}),
        "range": request("range", body={"temperature": 9}),
        "model": request("model", body={"model": "another"}),
        "field": request("field", body={"messages": 3}),
    }
    good = [request("good"), request("also good")]
    long = request("long", "x" * LIMITS["max_body_bytes"])
    content = jsonl(good[0], *wrong, "", *named.values(), long, good[1], request("good"))
    done = wait_for(ann, begin(ann, content).id)
    assert done.status == "completed"
    assert results(ann, done.output_file_id).keys() == {"good", "also good"}
    lines = [line for line in ann.files.content(done.error_file_id or "").text.splitlines() if line]
    assert len(lines) == len(wrong) + len(named) + 2
    errors = [json.loads(line) for line in lines]
    unnamed = [line["error"]["message"] for line in errors if line["custom_id"] is None]
    assert len(unnamed) == 4
    for message, begins in zip(
        unnamed,
        (
            "line 2: a line must be a JSON object: ",
            "line 3: a line must be a JSON object, got [1]",
            "line 4: custom_id must be a text of 1 to 512 characters, got 7",
            "line 14: a line must be at most 20000 bytes long",
        ),
        strict=True,
    ):
        assert message.startswith(begins)
    reported = {line["custom_id"]: line for line in errors if line["custom_id"]}
    assert reported["method"]["error"]["message"] == "line 6: method must be POST, got 'GET'"
    assert (
        "url must be the endpoint of the batch, /v1/chat/completions, got '/v1/completions'"
        in (reported["other url"]["error"]["message"])
    )
    assert "url must be one of /v1/chat/completions, " in reported["no url"]["error"]["message"]
    assert reported["body"]["error"]["message"].endswith("body must be an object, got 'text'")
    assert "a batch has whole responses" in reported["stream"]["error"]["message"]
    assert "line 1 has it too" in reported["good"]["error"]["message"]
    for name, status in (("range", 400), ("model", 404), ("field", 400)):
        response = reported[name]["response"]
        assert response["status_code"] == status
        assert response["body"]["error"]["message"]
    assert (done.request_counts.total, done.request_counts.completed) == (15, 2)


@pytest.mark.parametrize(
    ("endpoint", "body", "kind"),
    [
        ("/v1/completions", {"model": MODEL, "prompt": "Say"}, "text_completion"),
        ("/v1/responses", {"model": MODEL, "input": "Say"}, "response"),
    ],
)
def test_other_endpoints_answer_requests_too(ann: openai.OpenAI, endpoint: str, body: object, kind: str) -> None:
    content = jsonl(request("x", url=endpoint) | {"body": body})
    done = wait_for(ann, begin(ann, content, endpoint=endpoint).id)
    assert results(ann, done.output_file_id)["x"]["response"]["body"]["object"] == kind


def test_what_cannot_be_embedded_is_an_error_of_each_row(ann: openai.OpenAI) -> None:
    body = {"model": MODEL, "input": "x"}
    content = jsonl(request("x", url="/v1/embeddings") | {"body": body})
    done = wait_for(ann, begin(ann, content, endpoint="/v1/embeddings").id)
    assert done.output_file_id is None
    assert results(ann, done.error_file_id)["x"]["response"]["status_code"] == 400


def test_a_cancelled_batch_keeps_what_was_answered_and_cancels_what_runs(
    ann: openai.OpenAI, triton: FakeTriton
) -> None:
    triton.script = lambda received: Script(hold_after=0) if "hold" in received.inputs["messages"] else Script()
    made = begin(ann, jsonl(request("a"), request("b"), *(request(f"hold {n}", "hold") for n in range(60))))
    eventually_sync(lambda: len(triton.requests) >= 4)
    with pytest.raises(openai.ConflictError, match=f"The batch {made.id} reads this file"):
        ann.files.delete(made.input_file_id)
    assert ann.batches.cancel(made.id).status == "cancelling"
    done = wait_for(ann, made.id)
    assert done.status == "cancelled"
    assert done.cancelled_at is not None
    assert results(ann, done.output_file_id).keys() == {"a", "b"}
    assert (done.request_counts.completed, done.request_counts.failed) == (2, 0)
    pending = [received for received in triton.requests if "hold" in received.inputs["messages"]]
    eventually_sync(lambda: all(received.cancelled.is_set() for received in pending))
    assert len(pending) < 60
    with pytest.raises(openai.ConflictError, match="is cancelled; there is nothing to cancel"):
        ann.batches.cancel(made.id)
    ann.files.delete(made.input_file_id)


def test_batches_are_listed_newest_first_in_pages(ann: openai.OpenAI) -> None:
    ids = [begin(ann, jsonl(request("x"))).id for _ in range(3)]
    assert [batch.id for batch in ann.batches.list(limit=2).data] == ids[:0:-1]
    assert [batch.id for batch in ann.batches.list(limit=1)] == ids[::-1]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"endpoint": "/v1/images"}, "endpoint must be '/v1/chat/completions', "),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "999h"}, "completion_window must be at most 168h, got 999h"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
    ],
)
def test_a_batch_that_cannot_be_is_refused_by_field(ann: openai.OpenAI, more: dict[str, object], message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        begin(ann, jsonl(request("x")), **more)


def test_a_file_without_requests_fails_and_says_so(ann: openai.OpenAI) -> None:
    done = wait_for(ann, begin(ann, b"\n \n").id)
    assert done.status == "failed"
    assert done.errors.data[0].message == ("The input file must have 1 to 50000 requests, a line each; it has no.")


def test_a_batch_that_is_not_done_in_time_keeps_its_responses_and_names_the_rest(
    triton: FakeTriton, tmp_path: Path
) -> None:
    settings = Settings(triton_address=triton.address, files_dir=tmp_path)
    triton.script = lambda received: Script(hold_after=0) if "hold" in received.inputs["messages"] else Script()
    with running_gateway(settings) as url, openai_client(url) as client:
        made = begin(client, jsonl(request("a"), request("hold", "hold"), request("b")), completion_window="1h")
        eventually_sync(lambda: client.batches.retrieve(made.id).request_counts.completed == 2)  # type: ignore[union-attr]
    owned = Store(tmp_path, Limits(1, 1, 1)).of(None)
    record = owned.batch(made.id)
    record.expires_at = int(time.time()) - 1
    owned.save(record)
    triton.reset()
    with running_gateway(settings) as url, openai_client(url) as client:
        done = wait_for(client, made.id)
        assert done.status == "expired"
        assert results(client, done.output_file_id).keys() == {"a", "b"}
        late = results(client, done.error_file_id)
        assert late.keys() == {"hold"}
        assert late["hold"]["error"]["code"] == "batch_expired"
    assert triton.requests == []


POLICY = {
    "max_requests": 2,
    "user_groups": ["gold", "others"],
    "user_group_map": {"gold": [{"id": "boss", "quota_pct": 100}], "others": [{"id": "ann", "quota_pct": 50}]},
}


def test_the_engine_admits_every_other_request_before_rows(ann: openai.OpenAI, triton: FakeTriton) -> None:
    wait_for(ann, begin(ann, jsonl(request("a"))).id)
    ann.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])
    of_row, of_caller = (received.inputs.get("priority", 0) for received in triton.requests)
    assert of_caller < of_row == BATCH_PRIORITY


def test_rows_have_their_users_rank_and_take_nothing_of_their_quota(triton: FakeTriton, tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text(json.dumps(POLICY))
    settings = Settings(
        triton_address=triton.address, files_dir=tmp_path / "kept", qos_config_path=tmp_path / "policy.json"
    )
    triton.script = Script(hold_after=0, resume=True)
    users = ("ann", "ann", "ann", "boss", "nobody")
    with running_gateway(settings) as url, openai_client(url) as client:
        made = begin(client, jsonl(*(request(f"{n}", body={"user": user}) for n, user in enumerate(users))))
        eventually_sync(lambda: len(triton.requests) == 4)
        triton.script = Script()
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}], user="ann")
        triton.release.set()
        done = wait_for(client, made.id)
        assert results(client, done.output_file_id).keys() == {"0", "1", "2", "3"}
        assert results(client, done.error_file_id)["4"]["response"]["status_code"] == 403
    ranks = sorted(received.inputs["priority"] for received in triton.requests)
    assert ranks == [1, BATCH_PRIORITY, *[BATCH_PRIORITY + 1] * 3]


async def test_each_request_of_a_caller_takes_the_place_of_a_row_but_one_row_goes_on() -> None:
    callers = OpenRequests(count=3)
    slots = Slots(4, callers)
    await slots.take()
    waiting = [asyncio.create_task(slots.take()) for _ in range(4)]

    def begun() -> int:
        return sum(task.done() for task in waiting)

    await asyncio.sleep(0.3)  # they look again every 0.1 s
    assert begun() == 0
    callers.count = 9
    slots.free()
    await eventually(lambda: begun() == 1)
    callers.count = 0
    await eventually(lambda: begun() == 4)


def test_rows_do_not_keep_callers_out(triton: FakeTriton, tmp_path: Path) -> None:
    triton.script = lambda received: Script(hold_after=0) if "hold" in received.inputs["messages"] else Script()
    settings = Settings(triton_address=triton.address, files_dir=tmp_path, max_requests=2)
    with running_gateway(settings) as url, openai_client(url) as client:
        begin(client, jsonl(*(request(f"{n}", "hold") for n in range(10))))
        eventually_sync(lambda: len(triton.requests) == 10)
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])


def test_rows_wait_for_an_engine_that_is_away(ann: openai.OpenAI, triton: FakeTriton) -> None:
    triton.stop()
    try:
        made = begin(ann, jsonl(request("a"), request("b")))
        eventually_sync(lambda: ann.batches.retrieve(made.id).status == "in_progress")
    finally:
        triton.start()
    done = wait_for(ann, made.id)
    assert (done.status, done.error_file_id) == ("completed", None)
    assert results(ann, done.output_file_id).keys() == {"a", "b"}


def test_a_batch_whose_results_pass_what_its_key_may_keep_ends_and_keeps_them(
    ann: openai.OpenAI, triton: FakeTriton
) -> None:
    long = Script(texts=("x" * 50_000,))
    triton.script = lambda received: Script(hold_after=0) if "hold" in received.inputs["messages"] else long
    done = wait_for(ann, begin(ann, jsonl(*(request(f"{n}") for n in range(9)), request("last", "hold"))).id)
    assert done.status == "failed"
    assert done.errors.data[0].code == "quota_exceeded"
    assert results(ann, done.output_file_id).keys() == {f"{n}" for n in range(9)}
    with pytest.raises(openai.PermissionDeniedError, match="400000 bytes"):
        begin(ann, jsonl(request("a")))


def test_a_key_that_is_gone_leaves_its_batches_alone(triton: FakeTriton, tmp_path: Path) -> None:
    settings = Settings(triton_address=triton.address, files_dir=tmp_path, api_keys=("ann", "bob"))
    triton.script = Script(hold_after=0)
    with running_gateway(settings) as url, openai_client(url, "ann") as client:
        made = begin(client, jsonl(request("a")))
        eventually_sync(lambda: len(triton.requests) == 1)
    triton.reset()
    with running_gateway(Settings(triton_address=triton.address, files_dir=tmp_path, api_keys=("bob",))) as url:
        headers = {"authorization": "Bearer bob"}
        assert httpx.get(f"{url}/v1/batches", headers=headers, trust_env=False).json()["data"] == []
        with openai_client(url, "bob") as client:
            wait_for(client, begin(client, jsonl(request("b", "of bob"))).id)
        assert all("of bob" in received.inputs["messages"] for received in triton.requests)
    with running_gateway(settings) as url, openai_client(url, "ann") as client:
        assert wait_for(client, made.id).status == "completed"
