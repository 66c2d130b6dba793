"""Records of files and batches."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

Purpose = Literal["batch", "batch_output"]
Status = Literal["validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"]
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
SECONDS_KEPT = 30 * 24 * 3600


class FileObject(BaseModel):
    """A file (platform.openai.com/docs/api-reference/files/object)."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: Purpose
    status: Literal["processed"] = "processed"
    status_details: None = None


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
    """A batch (platform.openai.com/docs/api-reference/batch/object)."""

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
    """A batch as it is kept."""

    results_seconds: int = SECONDS_KEPT  # how long its results are kept
