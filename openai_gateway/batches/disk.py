"""Writing that survives whatever ends the process, dates, names that sort by them, and the lock of a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

PART = ".part"  # ends the name of a file that is being written
_ABANDONED = 24 * 3600  # seconds after which nobody writes a part any more


def now() -> int:
    """Return the date in seconds since 1970. What is kept over restarts is dated, and expires by dates alone."""
    return int(time.time())


def new_id(prefix: str) -> str:
    """Return an id no other thing has; those of one prefix sort by when they were made."""
    return f"{prefix}{time.time_ns():016x}{secrets.token_hex(8)}"


def make_private(folder: Path) -> None:
    """Make a folder, and those around it that are missing, for this user alone."""
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)


def private(path: str, flags: int) -> int:
    """Open a file, one that is new for this user alone; an opener for `open`."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there with all of its content, or as it was before."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PART}")
    try:
        with open(part, "xb", opener=private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk itself."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_abandoned(folder: Path) -> None:
    """Remove what processes that were killed had begun to write."""
    for part in folder.glob(f"*{PART}"):
        with contextlib.suppress(FileNotFoundError):
            if part.stat().st_mtime < now() - _ABANDONED:
                part.unlink()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the only one of all processes in this block, for one folder."""
    lock = take_lock(folder, waits=True)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def take_lock(folder: Path, *, waits: bool) -> int | None:
    """Return a descriptor that holds a folder's lock until it is closed or its process ends; None: another has it."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor
