"""Temporary folders that outlive no process for long.

Whoever fills a folder holds a lock on it, which the kernel gives back however the process ends. So a folder whose lock
is free was left behind by a process that was killed, and whoever next works alongside it removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


class Scratch:
    """A new empty folder, until `remove` or the end of a ``with`` block.

    ``parent``: where it is made; has to be there. ``prefix``: how its name begins. Folders of this parent and prefix
    that were left behind are removed.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        for left in left_behind(parent, prefix):
            shutil.rmtree(left, ignore_errors=True)
        while True:
            self.path = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
            lock = _lock(self.path)
            if lock is not None:
                self._lock = lock
                return
            # Somebody took it for left behind, in the moment before it was locked, and removes it.

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove it and all that it holds."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def left_behind(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield our folders of that parent and prefix whose process has ended, each locked while it is looked at."""
    for path in sorted(parent.glob(f"{glob.escape(prefix)}*")):
        with contextlib.suppress(OSError):
            if path.is_symlink() or path.stat().st_uid != os.geteuid():
                continue
        lock = _lock(path)
        if lock is not None:
            try:
                yield path
            finally:
                os.close(lock)


def _lock(path: Path) -> int | None:
    """Return an open, locked folder; None where it is gone, no folder, or another process's."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(folder).st_ino:
            return folder
    except OSError:
        pass
    os.close(folder)
    return None
