"""Waiting on an event with a deadline: nothing is lost, whatever comes at the same time."""

import asyncio

import pytest

from lmdeploy.serve.events import is_set_within


async def test_an_event_is_waited_for() -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await is_set_within(event, 60)
    assert await is_set_within(event, 0)


async def test_an_event_that_does_not_come_is_not_waited_for_longer() -> None:
    assert not await is_set_within(asyncio.Event(), 0.01)
    assert not await is_set_within(asyncio.Event(), -1)


async def test_an_event_that_another_waiter_has_cleared_was_set() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(is_set_within(event, 60))
    await asyncio.sleep(0.01)
    event.set()
    event.clear()
    assert await waiting


async def test_a_cancellation_that_comes_as_the_event_is_set_is_not_lost() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(is_set_within(event, 60))
    await asyncio.sleep(0.01)
    event.set()
    await asyncio.sleep(0)  # what waits on the event has ended, its caller does not know yet
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
