"""The batches of one owner: a record each, and marks alongside it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from openai_gateway.batches.disk import make_private, new_id, now, remove_abandoned, write_whole
from openai_gateway.batches.files import SECONDS_KEPT, Limits, QuotaError

Status = Literal["validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"]
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
_ID = re.compile(r"batch_[0-9a-f]{32}")
_OPEN, _CANCEL = ".open", ".cancel"
_DAY = 24 * 3600  # seconds


class BatchProblem(BaseModel):
    """Why a batch failed."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchProblems(BaseModel):
    """A list of them."""

    object: Literal["list"] = "list"
    data: list[BatchProblem]


class RequestCounts(BaseModel):
    """How far a batch is."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchObject(BaseModel):
    """What callers get of a batch (platform.openai.com/docs/api-reference/batch/object)."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchProblems | None = None
    input_file_id: str
    completion_window: str
    status: Status = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    metadata: dict[str, str] | None = None


class Record(BatchObject):
    """A batch as it is kept.

    Attributes
    ----------
    ends_as
        From ``finalizing`` on: what it is when its results have become files.
    output_id, errors_id
        The ids that these files get.
    results_seconds
        How long they are kept.
    """

    ends_as: Status = "completed"
    output_id: str
    errors_id: str
    results_seconds: int = SECONDS_KEPT


class Batches:
    """Batches of one owner.

    A record is written by who makes it, and from then on by who runs batches alone; all others leave marks, which are
    empty files: ``.open`` until it has ended, ``.cancel`` when it is not to continue.

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

    def add(
        self, *, endpoint: str, input_file_id: str, hours: int, metadata: dict[str, str] | None, results_seconds: int
    ) -> Record:
        """Make a batch.

        Raises
        ------
        QuotaError
            There are as many as may be.
        OSError
            It cannot be written.
        """
        make_private(self._folder)
        count = sum(1 for _ in self._ids())
        if count >= self._limits.owner_count:
            raise QuotaError(
                f"There are {count} batches, as many as may be kept for one API key; each is forgotten 30 days after "
                "it was made."
            )
        date = now()
        record = Record(
            id=new_id("batch_"),
            endpoint=endpoint,
            input_file_id=input_file_id,
            completion_window=f"{hours}h",
            created_at=date,
            expires_at=date + hours * 3600,
            metadata=metadata,
            output_id=new_id("file-"),
            errors_id=new_id("file-"),
            results_seconds=results_seconds,
        )
        self.save(record)
        self._mark(record.id, _OPEN).touch(mode=0o600)
        return record

    def save(self, record: Record) -> None:
        """Write a record."""
        write_whole(self._path(record.id), record.model_dump_json().encode())

    def get(self, batch_id: str) -> Record | None:
        """Return a batch as callers are to see it, if there is one."""
        record = self.stored(batch_id)
        if record is not None and record.status in ("validating", "in_progress"):
            with contextlib.suppress(FileNotFoundError):
                record.cancelling_at = int(self._mark(batch_id, _CANCEL).stat().st_mtime)
                record.status = "cancelling"
        return record

    def stored(self, batch_id: str) -> Record | None:
        """Return a batch as it is written."""
        if not _ID.fullmatch(batch_id):
            return None
        try:
            return Record.model_validate_json(self._path(batch_id).read_bytes())
        except FileNotFoundError:
            return None

    def all(self) -> list[Record]:
        """Return all batches, the newest first."""
        found = (self.get(batch_id) for batch_id in sorted(self._ids(), reverse=True))
        return [batch for batch in found if batch is not None]

    def open_ids(self) -> list[str]:
        """Return the ids of those that have not ended, the oldest first."""
        return sorted(name.removesuffix(_OPEN) for name in self._names() if name.endswith(_OPEN))

    def is_input(self, file_id: str) -> str | None:
        """Return a batch that has not ended and reads a file; None where none does."""
        records = (self.stored(batch_id) for batch_id in self.open_ids())
        return next((record.id for record in records if record and record.input_file_id == file_id), None)

    def cancel(self, batch_id: str) -> None:
        """Ask for the end of a batch."""
        self._mark(batch_id, _CANCEL).touch(mode=0o600)

    def is_cancelled(self, batch_id: str) -> bool:
        """Return whether somebody asked for its end."""
        return self._mark(batch_id, _CANCEL).exists()

    def results(self, batch_id: str) -> tuple[Path, Path]:
        """Return where the responses and the errors of a batch are written until it has ended."""
        return self._mark(batch_id, ".output"), self._mark(batch_id, ".errors")

    def close(self, batch_id: str) -> None:
        """Take away the marks of a batch that has ended."""
        self._mark(batch_id, _OPEN).unlink(missing_ok=True)
        self._mark(batch_id, _CANCEL).unlink(missing_ok=True)

    def clean(self) -> None:
        """Forget batches that are older than their files, those that nobody ran in time among them."""
        date = now()
        for batch_id in list(self._ids()):
            record = self.stored(batch_id)
            if record is None or max(record.created_at + SECONDS_KEPT, record.expires_at + _DAY) > date:
                continue
            for path in (self._path(batch_id), *self.results(batch_id)):
                path.unlink(missing_ok=True)
            self.close(batch_id)
        remove_abandoned(self._folder)

    def _ids(self) -> Iterator[str]:
        return (name.removesuffix(".json") for name in self._names() if name.endswith(".json"))

    def _names(self) -> list[str]:
        try:
            return [path.name for path in self._folder.iterdir()]
        except FileNotFoundError:
            return []

    def _path(self, batch_id: str) -> Path:
        return self._folder / f"{batch_id}.json"

    def _mark(self, batch_id: str, ending: str) -> Path:
        return self._folder / f"{batch_id}{ending}"
