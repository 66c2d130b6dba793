"""SQLite database shared by processes of one machine: records that outlive restarts, each with an owner."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_WAIT = 30.0  # seconds for the transaction of another process


def now() -> int:
    """Return the date in seconds since 1970. Records are dated, and expire by dates alone."""
    return int(time.time())


def new_id(prefix: str) -> str:
    """Return an id no other thing has; those of one prefix sort by when they were made."""
    return f"{prefix}{time.time_ns():016x}{secrets.token_hex(8)}"


def owner_name(key: str | None) -> str:
    """Return a name for the holder of an API key that does not reveal the key; None: everybody."""
    return "everybody" if key is None else hashlib.sha256(f"files of {key}".encode()).hexdigest()[:32]


def make_private(folder: Path) -> None:
    """Make a folder, and those around it that are missing, for this user alone."""
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)


class Database:
    """One SQLite file, opened at the first transaction."""

    def __init__(self, path: Path | None, schema: str) -> None:
        self._path = path  # the file, for this user alone; None: the memory of this process
        self._schema = schema
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Be the only one of all threads and processes in this block; an error takes back what it wrote.

        Raises `OSError` if the file cannot be used, or its disk is full.
        """
        try:
            with self._lock:
                if self._connection is None:
                    self._connection = self._opened()
                with self._connection as connection:
                    connection.execute("BEGIN IMMEDIATE")
                    yield connection
        except sqlite3.Error as error:
            number = errno.ENOSPC if "is full" in str(error) else errno.EIO
            raise OSError(number, str(error), str(self._path)) from None

    def _opened(self) -> sqlite3.Connection:
        if self._path is not None:
            make_private(self._path.parent)
            with suppress(FileExistsError):  # the files that SQLite adds have the mode of this one
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path or ":memory:", _WAIT, isolation_level=None, check_same_thread=False)
        connection.executescript(f"PRAGMA journal_mode=WAL; {self._schema}")
        return connection
