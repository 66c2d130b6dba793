"""Wait on a condition, with a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable


async def eventually(condition: Callable[[], bool | Awaitable[bool]], timeout: float = 10.0) -> None:
    """Return once `condition()` holds; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        held = condition()
        if held if isinstance(held, bool) else await held:
            return
        assert time.monotonic() < deadline, f"not so within {timeout} s"
        await asyncio.sleep(0.01)


def eventually_sync(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    """As `eventually`, for tests without an event loop."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not so within {timeout} s"
        time.sleep(0.01)
