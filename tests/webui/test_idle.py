"""A page that nobody uses costs next to nothing."""

import re
import time
from pathlib import Path

import httpx

SECONDS = 2.0


def wake_ups() -> int:
    """Return how often the threads of this process have gone to sleep so far."""
    files = (thread / "status" for thread in Path("/proc/self/task").iterdir())
    found = (re.search(r"^voluntary_ctxt_switches:\s+(\d+)", file.read_text(), re.MULTILINE) for file in files)
    return sum(int(each[1]) for each in found if each)


def test_a_page_that_nobody_uses_sleeps(page_url: str) -> None:
    assert httpx.get(page_url, trust_env=False).status_code == 200
    before = wake_ups()
    time.sleep(SECONDS)
    assert wake_ups() - before < 300 * SECONDS  # Gradio by itself: 1,100 times a second
