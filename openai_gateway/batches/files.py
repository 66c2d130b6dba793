"""The files of one owner: content and, alongside it, what is known of it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from openai_gateway.batches.disk import (
    PART,
    locked,
    make_private,
    new_id,
    now,
    private,
    remove_abandoned,
    sync_folder,
    write_whole,
)

DAYS_KEPT = 30
SECONDS_KEPT = DAYS_KEPT * 24 * 3600
_ID = re.compile(r"file-[0-9a-f]{32}")
_MIB = 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """What is kept at most.

    Attributes
    ----------
    file_bytes
        Of one file.
    owner_bytes
        Of all files and results of one owner.
    owner_count
        Files of one owner, and, counted for themselves, batches.
    """

    file_bytes: int
    owner_bytes: int
    owner_count: int


class QuotaError(Exception):
    """An owner has all that it may have; the text says so."""


class FileObject(BaseModel):
    """What callers get of a file."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"
    status_details: None = None


class Upload:
    """A file that is being written.

    Parameters
    ----------
    path
        Where.
    files
        Whose it will be.

    Attributes
    ----------
    size, lines
        Bytes and ends of lines that were written.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self.size = 0
        self.lines = 0
        self._path = path
        self._files = files
        self._file = os.fdopen(private(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")
        self._checked = 0

    def write(self, content: bytes) -> None:
        """Add to it.

        Raises
        ------
        QuotaError
            The owner's files would be too large.
        OSError
            It cannot be written.
        """
        self._file.write(content)
        self.size += len(content)
        self.lines += content.count(b"\n")
        if self.size - self._checked > 8 * _MIB:
            self._file.flush()
            self._files.require_room(more=False)
            self._checked = self.size

    def finish(self, filename: str, purpose: Literal["batch"], seconds: int) -> FileObject:
        """Make it a file, kept for this many seconds.

        Raises
        ------
        QuotaError, OSError
            As `write`.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._files.adopt(self._path, new_id("file-"), filename, purpose, seconds)

    def drop(self) -> None:
        """Forget it, unless it is finished."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)


class Files:
    """Files of one owner.

    Parameters
    ----------
    folder
        Where they are; it is made with the first one.
    limits
        What the owner may have.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder = folder
        self._limits = limits

    def upload(self) -> Upload:
        """Begin a file.

        Raises
        ------
        QuotaError
            The owner has as many files, or bytes, as it may have.
        OSError
            It cannot be written.
        """
        make_private(self._folder)
        self.require_room()
        return Upload(self._folder / f"{new_id('upload-')}{PART}", self)

    def require_room(self, *, more: bool = True) -> None:
        """Raise `QuotaError` where there is no space for what is there; with `more`, for a further file."""
        count, size = self.usage()
        if more and count >= self._limits.owner_count:
            raise QuotaError(f"There are {count} files, as many as may be kept for one API key; delete some first.")
        if size > self._limits.owner_bytes or (more and size >= self._limits.owner_bytes):
            raise QuotaError(
                f"Files and results of one API key may have {self._limits.owner_bytes} bytes; delete some first."
            )

    def usage(self) -> tuple[int, int]:
        """Return how many files there are, and the bytes of these, of uploads and of results."""
        count = size = 0
        for folder in (self._folder, self._folder.with_name("batches")):
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        size += entry.stat().st_size
                        count += _ID.fullmatch(entry.name) is not None
        return count, size

    def adopt(
        self, path: Path, file_id: str, filename: str, purpose: Literal["batch", "batch_output"], seconds: int
    ) -> FileObject:
        """Make what was written at a path a file; called again after it was broken off, it ends what it had begun.

        Raises
        ------
        QuotaError
            A file of the owner's own is one too many; results are always kept.
        """
        make_private(self._folder)
        content, date = self._folder / file_id, now()
        with locked(self._folder):
            if purpose == "batch":
                self.require_room(more=False)
                if self.usage()[0] >= self._limits.owner_count:
                    self.require_room()
            if path.exists():
                path.replace(content)
            size = content.stat().st_size
            made = FileObject(
                id=file_id,
                bytes=size,
                created_at=date,
                expires_at=date + seconds,
                filename=filename,
                purpose=purpose,
            )
            write_whole(self._notes(file_id), made.model_dump_json().encode())
        sync_folder(self._folder)
        return made

    def get(self, file_id: str) -> FileObject | None:
        """Return a file that is there and has not expired."""
        if not _ID.fullmatch(file_id):
            return None
        try:
            found = FileObject.model_validate_json(self._notes(file_id).read_bytes())
        except (FileNotFoundError, ValueError):  # half deleted
            return None
        return None if found.expires_at is not None and found.expires_at <= now() else found

    def content(self, file_id: str) -> Path:
        """Return where the content of a file is."""
        return self._folder / file_id

    def all(self) -> list[FileObject]:
        """Return all files, the newest first."""
        found = (self.get(file_id) for file_id in sorted(self._ids(), reverse=True))
        return [file for file in found if file is not None]

    def delete(self, file_id: str) -> None:
        """Remove a file."""
        self._notes(file_id).unlink(missing_ok=True)
        self.content(file_id).unlink(missing_ok=True)

    def clean(self) -> None:
        """Remove what has expired, and what uploads left behind."""
        for file_id in list(self._ids()):
            if self.get(file_id) is None:
                self._remove_old(file_id)
        remove_abandoned(self._folder)

    def _remove_old(self, file_id: str) -> None:
        with locked(self._folder):  # not one that is just being made
            if self.get(file_id) is None:
                self.delete(file_id)

    def _ids(self) -> Iterator[str]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if _ID.fullmatch(entry.name):
                    yield entry.name

    def _notes(self, file_id: str) -> Path:
        return self._folder / f"{file_id}.json"
