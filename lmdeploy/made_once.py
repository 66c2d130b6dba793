"""Folders created by one process and shared by others: whoever needs one first makes it, the others wait."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from lmdeploy.scratch import Scratch


def made_once(folder: Path, fill: Callable[[Path], object]) -> Path:
    """Return `folder`, which is whole or absent, after `fill` has made what it holds if it was absent.

    Of several processes and threads that ask for it at once, one calls `fill`; if that fails, the next one tries.
    ``folder``: its parents are made where they are missing. Nothing is left in them but it. ``fill``: called with an
    empty folder, which takes its place when the call returns. Raises `OSError`: the parent cannot be written. Raises
    `Exception`: whatever `fill` raises.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder.with_name(f".lock-{folder.name}")):
        if folder.is_dir():
            return folder
        with Scratch(folder.parent, ".writing-") as scratch:
            made = scratch / "made"
            made.mkdir()
            fill(made)
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():  # else a machine was first that shares our disk and not its locks
                    raise
    return folder


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Let one at a time through. The kernel gives the lock back however its holder ends."""
    while True:
        file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _names(lock, file):
                try:
                    yield
                finally:
                    lock.unlink(missing_ok=True)
                return
            # It was removed by whom we waited for; who comes now makes another.
        finally:
            os.close(file)


def _names(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False
