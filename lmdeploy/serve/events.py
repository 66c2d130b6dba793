"""Waiting on an `asyncio.Event` with a deadline."""

from __future__ import annotations

import asyncio


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Return whether an event is set within this many seconds, though it may be cleared again by now.

    Before Python 3.12 `asyncio.wait_for` loses a cancellation that comes as the event is set
    (github.com/python/cpython/issues/86296): the caller would continue, and whoever cancelled it would wait forever.
    """
    waiting = asyncio.ensure_future(event.wait())
    try:
        done, _ = await asyncio.wait((waiting,), timeout=max(0.0, seconds))
    finally:
        waiting.cancel()
    return bool(done)
