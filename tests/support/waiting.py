"""Wait on a condition, with a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

_MAX_PAUSE = 0.1  # seconds


def _pauses() -> Iterator[float]:
    """Yield ever longer pauses: what is asked for may need the processor that asking takes."""
    pause = 0.01
    while True:
        yield pause
        pause = min(1.3 * pause, _MAX_PAUSE)


async def eventually(condition: Callable[[], bool | Awaitable[bool]], timeout: float = 180.0) -> None:
    """Return once `condition()` holds; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    for pause in _pauses():
        outcome = condition()
        if outcome if isinstance(outcome, bool) else await outcome:
            return
        assert time.monotonic() < deadline, f"not so within {timeout} s"
        await asyncio.sleep(pause)


def eventually_sync(condition: Callable[[], bool], timeout: float = 180.0) -> None:
    """As `eventually`, for tests without an event loop."""
    deadline = time.monotonic() + timeout
    for pause in _pauses():
        if condition():
            return
        assert time.monotonic() < deadline, f"not so within {timeout} s"
        time.sleep(pause)
