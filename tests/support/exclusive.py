"""Tests that have the machine to themselves: while one marked ``alone`` runs, pytest-xdist's other workers wait.

Each test of a run shares the lock ``machine``; one that is alone has it for itself. ``turnstile`` is held by whoever
waits for that, so that nobody new goes in before.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest

MARK = "alone"

_RUN = "PYTEST_XDIST_TESTRUNUID"  # in the environment of workers


@contextmanager
def place_on_the_machine(item: pytest.Item) -> Iterator[None]:
    """Wait until a test may run; while it does, others wait as its mark says."""
    run = os.environ.get(_RUN)
    if run is None:
        yield
        return
    is_alone = item.get_closest_marker(MARK) is not None
    with _lock(run, "machine") as machine:
        with _lock(run, "turnstile") as turnstile:
            fcntl.flock(turnstile, fcntl.LOCK_EX)
            fcntl.flock(machine, fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH)
        yield


def _lock(run: str, name: str) -> TextIO:
    """Open the file of a lock, which is held until it is closed."""
    return (Path(tempfile.gettempdir()) / f"{run}.{name}").open("w", encoding="utf-8")
