"""A page that nobody uses costs next to nothing."""

import contextlib
import re
import time
from pathlib import Path

import httpx

from tests.support.fake_triton import FakeTriton
from tests.support.gateways import running_page

SECONDS = 2.0
THREADS = Path("/proc/self/task")


def wake_ups(others: set[Path]) -> int:
    """Return how often the threads of this process but these have gone to sleep so far."""
    total = 0
    for thread in set(THREADS.iterdir()) - others:
        with contextlib.suppress(OSError):  # it ended meanwhile
            text = (thread / "status").read_text()
            total += sum(map(int, re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.MULTILINE)))
    return total


def test_a_page_that_nobody_uses_sleeps(fake_triton: FakeTriton) -> None:
    others = set(THREADS.iterdir())  # which other tests have left, or the session's page needs
    with running_page(fake_triton.address) as url:
        assert httpx.get(url, trust_env=False).status_code == 200
        before = wake_ups(others)
        time.sleep(SECONDS)
        assert wake_ups(others) - before < 300 * SECONDS  # Gradio by itself: 1,100 times a second
