"""Folders that processes share: made by one of them, and gone with the process that filled them."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lmdeploy.made_once import made_once
from lmdeploy.scratch import Scratch, left_behind
from lmdeploy.serve.shared_memory import Regions

HOLD = """
import sys, time
from pathlib import Path
from lmdeploy.scratch import Scratch
scratch = Scratch(Path(sys.argv[1]), ".writing-")
(scratch.path / "half").write_text("done")
print(scratch.path, flush=True)
time.sleep(600)
"""


def holder(parent: Path) -> tuple["subprocess.Popen[str]", Path]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(parent)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_it_is_gone_after_the_block_even_if_that_fails(tmp_path: Path) -> None:
    def fail() -> None:
        with Scratch(tmp_path, ".writing-") as scratch:
            (scratch / "folder").mkdir()
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_fills_is_not(tmp_path: Path) -> None:
    killed, left = holder(tmp_path)
    living, folder = holder(tmp_path)
    try:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        assert (left / "half").is_file()
        with Scratch(tmp_path, ".writing-") as scratch:
            assert set(tmp_path.iterdir()) == {folder, scratch}
        assert (folder / "half").is_file()
    finally:
        living.kill()
        living.wait()


def test_other_names_links_and_files_are_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / ".writing-link").symlink_to(precious)
    (tmp_path / ".writing-file").write_text("")
    (tmp_path / ".other-folder").mkdir()
    (tmp_path / ".writing-[a]-b").mkdir()
    before = set(tmp_path.iterdir())
    with Scratch(tmp_path, ".writing-[a]-"):
        pass
    assert set(tmp_path.iterdir()) == before - {tmp_path / ".writing-[a]-b"}
    assert list(left_behind(tmp_path, ".writing-")) == []


def test_regions_of_a_killed_server_are_found_by_their_name(tmp_path: Path) -> None:
    script = HOLD.replace(".writing-", "lmdeploy-triton-")
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    name = Path(process.stdout.readline().strip()).name
    (tmp_path / f"{name}-region").write_bytes(bytes(8))
    (tmp_path / "of-somebody-else").write_bytes(bytes(8))
    Regions(tmp_path).remove()
    assert (tmp_path / f"{name}-region").is_file()  # its server may still run
    process.kill()
    process.wait()
    regions = Regions(tmp_path)
    assert not (tmp_path / f"{name}-region").exists()
    (tmp_path / f"{regions.prefix}mine").write_bytes(bytes(8))
    regions.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["of-somebody-else"]


DEADLINE_SECONDS = 180


class Waiting:
    """Lets a test see that a second one asks for the lock while the first has it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lock, self._locked = threading.Lock(), 0
        self.second = threading.Event()
        self._flock = fcntl.flock
        monkeypatch.setattr(fcntl, "flock", self._count)

    def _count(self, file: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX:  # scratch folders do not wait for theirs
            with self._lock:
                self._locked += 1
                if self._locked == 2:
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
    def reject(*_: object) -> None:
        raise AssertionError("nothing is to be made")

    monkeypatch.setattr(fcntl, "flock", reject)
    assert made_once(tmp_path, reject) == tmp_path
