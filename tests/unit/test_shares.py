"""Whoever waits gets of a shared amount in turn, one key after another, and what is given back is never lost."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest
from fastapi.testclient import TestClient

from openai_gateway.app import create_app
from openai_gateway.middleware import body_limit
from openai_gateway.settings import Settings
from openai_gateway.shares import Shares


async def test_keys_have_turns_however_many_requests_they_have() -> None:
    shares = Shares(2)
    served: list[str] = []

    async def work(key: str) -> None:
        async with shares.taken(key):
            served.append(key)
            await asyncio.sleep(0)

    await asyncio.gather(*map(work, [*["ann"] * 20, "bob", "cid", "bob"]))
    assert served.index("cid") <= 5
    assert [index for index, key in enumerate(served) if key == "bob"][-1] <= 8


async def test_a_large_request_is_not_overtaken_and_a_full_share_is_in_nobodys_way() -> None:
    shares = Shares(10, 5)
    await shares.take("ann", 5)
    await shares.take("bob", 4)
    waiting = {
        name: asyncio.ensure_future(shares.take(key, amount))
        for name, key, amount in (("ann's", "ann", 1), ("cid's", "cid", 8), ("dan's", "dan", 1))
    }
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting.values())  # one is free, and it is the turn of cid, who wants 8
    shares.release("ann", 5)
    await asyncio.wait([waiting["ann's"]])  # ann's turn was before cid's
    shares.release("ann", 1)
    assert not waiting["cid's"].done()
    shares.release("bob", 4)
    await asyncio.wait(waiting.values())


async def test_requests_without_a_key_may_have_all() -> None:
    shares = Shares(10, 5)
    for amount in (5, 4, 1):
        await shares.take(None, amount, 0)


@pytest.mark.parametrize("seed", range(20))
async def test_nothing_is_lost_whoever_stops_waiting(seed: int) -> None:
    generator = random.Random(seed)
    total = 12
    shares = Shares(total, total // 2)
    reserved = 0

    async def work() -> None:
        nonlocal reserved
        key, amount = generator.choice("abc"), generator.randint(1, 9)
        with suppress(TimeoutError):
            await shares.take(key, amount, generator.choice([0, 0.001, None]))
            reserved += amount
            assert reserved <= total
            try:
                await asyncio.sleep(0)
            finally:
                reserved -= amount
                shares.release(key, amount)

    tasks = [asyncio.ensure_future(work()) for _ in range(60)]
    await asyncio.sleep(0)
    for task in generator.sample(tasks, 10):
        task.cancel()
    ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    assert not [result for result in ended if isinstance(result, AssertionError)]
    assert reserved == 0
    await asyncio.wait_for(shares.take("d", total), 60)  # all of it is there


def test_a_long_body_waits_for_those_before_it_and_not_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(Settings(max_bodies_bytes=2 * body_limit.SHORT))
    taken: list[tuple[str | None, int]] = []
    take = Shares.take

    async def recorded(self: Shares, key: str | None, amount: int = 1, seconds: float | None = None) -> None:
        if seconds == body_limit.MAX_WAIT_SECONDS:
            taken.append((key, amount))
            if len(taken) > 1:
                raise TimeoutError
        await take(self, key, amount, seconds)

    monkeypatch.setattr(Shares, "take", recorded)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        for length, status in ((10, 400), (body_limit.SHORT, 400), (body_limit.SHORT, 503)):
            body = b'{"a": "' + length * b"a" + b'"}'
            response = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
            assert response.status_code == status, response.text
            assert ("retry-after" in response.headers) == (status == 503)
    assert taken == [(None, body_limit.SHORT + 9)] * 2
