"""Batches yield: to callers, to a server that is full or away, and to what their key may keep."""

import asyncio
import json
from pathlib import Path

import httpx
import openai
import pytest

from openai_gateway.batches.work import Slots
from openai_gateway.gateway import BATCH_PRIORITY
from openai_gateway.middleware.internal_requests import OpenRequests
from openai_gateway.settings import Settings
from tests.gateway.batches.conftest import jsonl, request, results, wait_for
from tests.gateway.batches.test_batches import begin
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, Script
from tests.support.gateways import running_gateway
from tests.support.waiting import eventually, eventually_sync

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
    with (
        running_gateway(settings) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
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
    with (
        running_gateway(settings) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
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
    assert done.errors is not None
    assert done.errors.data is not None
    assert done.errors.data[0].code == "quota_exceeded"
    assert results(ann, done.output_file_id).keys() == {f"{n}" for n in range(9)}
    with pytest.raises(openai.PermissionDeniedError, match="400000 bytes"):
        begin(ann, jsonl(request("a")))


def test_a_key_that_is_gone_leaves_its_batches_alone(triton: FakeTriton, tmp_path: Path) -> None:
    settings = Settings(triton_address=triton.address, files_dir=tmp_path, api_keys=("ann", "bob"))
    triton.script = Script(hold_after=0)
    with (
        running_gateway(settings) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="ann", max_retries=0) as client,
    ):
        made = begin(client, jsonl(request("a")))
        eventually_sync(lambda: len(triton.requests) == 1)
    triton.reset()
    with running_gateway(Settings(triton_address=triton.address, files_dir=tmp_path, api_keys=("bob",))) as url:
        headers = {"authorization": "Bearer bob"}
        assert httpx.get(f"{url}/v1/batches", headers=headers, trust_env=False).json()["data"] == []
        with openai.OpenAI(base_url=f"{url}/v1", api_key="bob", max_retries=0) as client:
            wait_for(client, begin(client, jsonl(request("b", "of bob"))).id)
        assert all("of bob" in received.inputs["messages"] for received in triton.requests)
    with (
        running_gateway(settings) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="ann", max_retries=0) as client,
    ):
        assert wait_for(client, made.id).status == "completed"
