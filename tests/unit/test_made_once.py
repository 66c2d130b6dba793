"""A folder that several ask for at once is made by one of them."""

import fcntl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lmdeploy.made_once import made_once

DEADLINE_SECONDS = 180


class Waiting:
    """Lets a test see that a second one asks for the lock while the first has it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lock, self._asked = threading.Lock(), 0
        self.second = threading.Event()
        self._flock = fcntl.flock
        monkeypatch.setattr(fcntl, "flock", self._ask)

    def _ask(self, file: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX:  # scratch folders do not wait for theirs
            with self._lock:
                self._asked += 1
                if self._asked == 2:
                    self.second.set()
        self._flock(file, operation)


@pytest.mark.parametrize("first_fails", [False, True])
def test_who_comes_meanwhile_waits_and_makes_it_only_if_the_first_could_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_fails: bool
) -> None:
    folder, waiting = tmp_path / "parent" / "wanted", Waiting(monkeypatch)
    made: list[str] = []

    def fill(path: Path) -> None:
        made.append("begun")
        if len(made) == 1:
            assert waiting.second.wait(DEADLINE_SECONDS)
            if first_fails:
                raise ValueError("broken")
        (path / "content").write_text(f"of {len(made)}")

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(made_once, folder, fill) for _ in range(2)]
        failures = [future.exception() for future in futures]
    assert sorted(map(str, failures)) == (["None", "broken"] if first_fails else ["None", "None"])
    assert len(made) == (2 if first_fails else 1)
    assert (folder / "content").read_text() == f"of {len(made)}"
    assert list(folder.parent.iterdir()) == [folder]


def test_one_that_is_there_is_taken_without_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("nothing is to be made")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert made_once(tmp_path, refuse) == tmp_path
