"""Store of files and batches per API key, in a folder shared by processes: records in SQLite, contents as files."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from openai_gateway.batches.records import (
    SECONDS_KEPT,
    BatchProblem,
    BatchProblems,
    FileObject,
    Purpose,
    Record,
    Status,
)
from openai_gateway.database import Database, make_private, new_id, now, owner_name

_CONTENT = re.compile(r"file-[0-9a-f]{32}(-output|-errors)?")
_DAY = 24 * 3600  # seconds
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (id TEXT PRIMARY KEY, owner TEXT, expires_at INTEGER, object TEXT);
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, owner TEXT, input_file_id TEXT, forgotten_at INTEGER, is_open INTEGER DEFAULT 1,
    cancelling_at INTEGER, object TEXT
);
CREATE INDEX IF NOT EXISTS files_of ON files (owner);
CREATE INDEX IF NOT EXISTS batches_of ON batches (owner);
CREATE INDEX IF NOT EXISTS open_batches ON batches (owner, id) WHERE is_open;
"""


@dataclass(frozen=True)
class Limits:
    """Limits of the files and batches of one owner."""

    file_bytes: int  # of one file
    owner_bytes: int  # of all files and results of one owner
    owner_count: int  # files of one owner, and, counted for themselves, batches


class QuotaError(Exception):
    """An owner has all that it may have; the text says so."""


class Owned:
    """Files and batches of one API key.

    The record of a batch is written by who makes it, and from then on by who runs batches alone; others may set when it
    was cancelled.
    """

    def __init__(self, database: Database, folder: Path, limits: Limits) -> None:
        self._database = database
        # The contents of this one's files and, until a batch has ended, its results; named after the owner
        self._folder = folder
        self._owner = folder.name
        self._limits = limits

    def new_file(self) -> Path:
        """Return an empty file that is to be written and kept; raise `QuotaError` where there is no room for one."""
        make_private(self._folder)
        self.require_room(files=1, size=1)
        path = self.content(new_id("file-"))
        path.touch(mode=0o600, exist_ok=False)
        return path

    def require_room(self, *, files: int = 0, size: int = 0) -> None:
        """Raise `QuotaError` where there is no space for what is there, and for more files and bytes."""
        with self._database.transaction() as records:
            self._require_room(records, files, size)

    def keep(self, file_id: str, filename: str, seconds: int) -> FileObject:
        """Make what was written one of the owner's files, for this many seconds."""
        _sync_folder(self._folder)
        with self._database.transaction() as records:
            self._require_room(records, 1, 0)
            return self._keep(records, file_id, filename, "batch", seconds)

    def content(self, file_id: str) -> Path:
        """Return where the content of a file is."""
        return self._folder / file_id

    def file(self, file_id: str) -> FileObject | None:
        """Return a file that is there and has not expired."""
        return next(iter(self.files(file_id)), None)

    def files(self, file_id: str | None = None) -> list[FileObject]:
        """Return all files, the newest first; where an id is given, the one that has it."""
        select = "SELECT object FROM files WHERE owner = ? AND expires_at > ? AND id = coalesce(?, id)"
        with self._database.transaction() as records:
            values = (self._owner, now(), file_id)
            found = records.execute(f"{select} ORDER BY rowid DESC", values).fetchall()
        return [FileObject.model_validate_json(text) for (text,) in found]

    def delete_file(self, file_id: str) -> str | None:
        """Remove a file; if a batch that has not ended reads it, return the id of the batch instead."""
        with self._database.transaction() as records:
            reads = "SELECT id FROM batches WHERE owner = ? AND is_open AND input_file_id = ?"
            for (batch_id,) in records.execute(reads, (self._owner, file_id)):
                return str(batch_id)
            records.execute("DELETE FROM files WHERE owner = ? AND id = ?", (self._owner, file_id))
        self.content(file_id).unlink(missing_ok=True)
        return None

    def add_batch(
        self, *, endpoint: str, input_file_id: str, hours: int, metadata: dict[str, str] | None, results_seconds: int
    ) -> Record:
        """Make a batch; raise `QuotaError` where there are as many as may be."""
        date = now()
        record = Record(
            id=new_id("batch_"),
            endpoint=endpoint,
            input_file_id=input_file_id,
            completion_window=f"{hours}h",
            created_at=date,
            expires_at=date + hours * 3600,
            metadata=metadata,
            results_seconds=results_seconds,
        )
        purge_at = max(date + SECONDS_KEPT, record.expires_at + _DAY)
        with self._database.transaction() as records:
            if (count := self._count(records, "batches")) >= self._limits.owner_count:
                raise QuotaError(
                    f"There are {count} batches, as many as may be kept for one API key; each is forgotten 30 days "
                    "after it was made."
                )
            records.execute(
                "INSERT INTO batches (id, owner, input_file_id, forgotten_at, object) VALUES (?, ?, ?, ?, ?)",
                (record.id, self._owner, input_file_id, purge_at, record.model_dump_json()),
            )
        return record

    def batch(self, batch_id: str) -> Record | None:
        """Return a batch, if there is one."""
        return next(iter(self.batches(batch_id)), None)

    def batches(self, batch_id: str | None = None) -> list[Record]:
        """Return all batches, the newest first; where an id is given, the one that has it."""
        select = "SELECT object, is_open, cancelling_at FROM batches WHERE owner = ? AND id = coalesce(?, id)"
        with self._database.transaction() as records:
            found = records.execute(f"{select} ORDER BY rowid DESC", (self._owner, batch_id)).fetchall()
        batches = []
        for text, is_open, cancelling_at in found:
            batches.append(record := Record.model_validate_json(text))
            record.cancelling_at = cancelling_at
            if is_open and cancelling_at is not None:
                record.status = "cancelling"
        return batches

    def cancel(self, batch_id: str) -> None:
        """Ask for the end of a batch."""
        with self._database.transaction() as records:
            cancel = "UPDATE batches SET cancelling_at = ? WHERE owner = ? AND id = ? AND is_open"
            records.execute(cancel, (now(), self._owner, batch_id))

    def save(self, record: Record) -> None:
        """Write how far a batch is."""
        with self._database.transaction() as records:
            self._save(records, record, is_open=True)

    def results(self, batch_id: str) -> tuple[Path, Path]:
        """Return where the responses and the errors of a batch are written: files once it has ended."""
        output, errors = _results_of(batch_id)
        return self.content(output), self.content(errors)

    def end(self, record: Record, status: Status, problem: BatchProblem | None = None) -> None:
        """Write that a batch has ended, and make its results files: all of it, or nothing."""
        make_private(self._folder)
        _sync_folder(self._folder)
        record.status, record.finalizing_at = status, now()
        setattr(record, f"{status}_at", now())
        if problem is not None:
            record.errors = BatchProblems(data=[problem])
        with self._database.transaction() as records:
            for path, name in zip(self.results(record.id), ("output", "error"), strict=True):
                if path.exists() and path.stat().st_size:
                    filename = f"{record.id}_{name}.jsonl"
                    self._keep(records, path.name, filename, "batch_output", record.results_seconds)
                    setattr(record, f"{name}_file_id", path.name)
            self._save(records, record, is_open=False)

    def _require_room(self, records: sqlite3.Connection, files: int, size: int) -> None:
        count = self._count(records, "files")
        if files and count + files > self._limits.owner_count:
            raise QuotaError(f"There are {count} files, as many as may be kept for one API key; delete some first.")
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # deleted meanwhile
                    size += entry.stat().st_size
        if size > self._limits.owner_bytes:
            raise QuotaError(
                f"Files and results of one API key may have {self._limits.owner_bytes} bytes; delete some first."
            )

    def _count(self, records: sqlite3.Connection, table: str) -> int:
        (count,) = records.execute(f"SELECT count(*) FROM {table} WHERE owner = ?", (self._owner,)).fetchone()
        return int(count)

    def _keep(
        self, records: sqlite3.Connection, file_id: str, filename: str, purpose: Purpose, seconds: int
    ) -> FileObject:
        date = now()
        made = FileObject(
            id=file_id,
            bytes=self.content(file_id).stat().st_size,
            created_at=date,
            expires_at=date + seconds,
            filename=filename,
            purpose=purpose,
        )
        row = (file_id, self._owner, made.expires_at, made.model_dump_json())
        records.execute("INSERT INTO files VALUES (?, ?, ?, ?)", row)
        return made

    def _save(self, records: sqlite3.Connection, record: Record, *, is_open: bool) -> None:
        save = "UPDATE batches SET object = ?, is_open = ? WHERE owner = ? AND id = ?"
        records.execute(save, (record.model_dump_json(), is_open, self._owner, record.id))


class Store:
    """Files and batches of all owners, and the lock of who runs the batches."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder = folder  # it is made when something is first kept
        self._database = Database(folder / "records.sqlite", _SCHEMA)
        self.limits = limits

    def of(self, key: str | None) -> Owned:
        """Return the batches of the holder of an API key; None: everybody's."""
        return Owned(self._database, self._folder / owner_name(key), self.limits)

    def lock(self) -> int | None:
        """Return a descriptor that makes its holder the one who runs batches; None: another process does."""
        make_private(self._folder)
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def waiting(self) -> dict[str, str]:
        """Return of each owner the oldest batch that has not ended."""
        with self._database.transaction() as records:
            return dict(records.execute("SELECT owner, min(id) FROM batches WHERE is_open GROUP BY owner"))

    def clean(self) -> None:
        """Remove what has expired, also of keys that are gone, and what broken off uploads left."""
        date = now()
        with self._database.transaction() as records:
            expired = {name for (name,) in records.execute("SELECT id FROM files WHERE expires_at <= ?", (date,))}
            records.execute("DELETE FROM files WHERE expires_at <= ?", (date,))
            records.execute("DELETE FROM batches WHERE forgotten_at <= ?", (date,))
            kept = {name for (name,) in records.execute("SELECT id FROM files")}
            for (batch_id,) in records.execute("SELECT id FROM batches WHERE is_open"):
                kept.update(_results_of(batch_id))
        for path in self._folder.glob("*/file-*"):
            with suppress(FileNotFoundError):
                is_left = path.name in expired or path.stat().st_mtime < date - _DAY
                if is_left and path.name not in kept and _CONTENT.fullmatch(path.name):
                    path.unlink()


def _results_of(batch_id: str) -> tuple[str, str]:
    """Return the ids of the files that the responses and the errors of a batch become."""
    name = batch_id.removeprefix("batch_")
    return f"file-{name}-output", f"file-{name}-errors"


def _sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk itself."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
