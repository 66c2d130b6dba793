"""Runs the batches of a folder: in one process at a time, from where the last one was when it ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection

from lmdeploy.serve.events import is_set_within
from openai_gateway.batches.disk import now
from openai_gateway.batches.files import QuotaError
from openai_gateway.batches.records import ENDED, BatchProblem, BatchProblems, Record, Status
from openai_gateway.batches.requests import MAX_LINES, MAX_REQUESTS, BatchRequests, count_requests, error_line
from openai_gateway.batches.results import Results, ResultsError
from openai_gateway.batches.slots import Slots
from openai_gateway.batches.store import Owned, Store
from openai_gateway.batches.work import Ask, work_through

logger = logging.getLogger(__name__)

_LOOK = 1.0  # seconds between looks at what other processes have left
_LOCK = 2.0  # seconds between tries to become the one who runs batches
_CLEAN = 600.0  # seconds
_PAUSE = 10.0  # seconds after a failure of the disk
_EXPIRED = "the batch's completion window was over before this request was made"


class _EndedEarly(Exception):
    """The requests that are left are not asked any more."""

    def __init__(self, status: Status, problem: BatchProblem | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.problem = problem


class BatchRunner:
    """The batches of all owners whose keys there are, one of each owner's at a time.

    Parameters
    ----------
    store
        Where they are.
    keys
        The API keys; empty: there are none.
    slots
        How many requests are asked at a time.
    ask
        Returns what answers requests for the holder of a key.
    max_request_bytes
        Of a line.
    """

    def __init__(
        self,
        store: Store,
        keys: Collection[str],
        slots: Slots,
        ask: Callable[[str | None], Ask],
        max_request_bytes: int,
    ) -> None:
        self._store = store
        self._keys: list[str | None] = [*keys] or [None]
        self._slots = slots
        self._ask = ask
        self._max_request_bytes = max_request_bytes
        self._running: dict[str | None, asyncio.Task[None]] = {}
        self._new = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, as soon as no other process runs the batches of this folder."""
        self._task = asyncio.create_task(self._run())

    def look(self) -> None:
        """Hear that there is a batch, or a wish to cancel one."""
        self._new.set()

    async def stop(self) -> None:
        """Leave off; what has been answered is kept, and another process continues from there."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        lock = await self._lock()
        cleaned = 0.0
        try:
            while True:
                self._new.clear()
                if time.monotonic() - cleaned > _CLEAN or not cleaned:
                    cleaned = time.monotonic()
                    await self._clean()
                for key in self._keys:
                    if key not in self._running and (waiting := self._store.of(key).batches.open_ids()):
                        self._begin(key, waiting[0])
                await is_set_within(self._new, _LOOK)
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            os.close(lock)

    async def _lock(self) -> int:
        while True:
            try:
                lock = self._store.lock()
            except OSError as error:
                logger.error("files and batches cannot be kept: %s", error)
                lock = None
            if lock is not None:
                return lock
            await asyncio.sleep(_LOCK)

    async def _clean(self) -> None:
        try:
            await asyncio.to_thread(self._store.clean)
        except OSError as error:
            logger.warning("what has expired cannot be removed: %s", error)

    def _begin(self, key: str | None, batch_id: str) -> None:
        task = asyncio.create_task(self._guarded(key, batch_id))
        self._running[key] = task

        def ended(ended_task: asyncio.Task[None]) -> None:
            del self._running[key]
            self._new.set()
            if not ended_task.cancelled():
                ended_task.exception()  # seen; what ends the process is reported elsewhere

        task.add_done_callback(ended)

    async def _guarded(self, key: str | None, batch_id: str) -> None:
        """Run a batch; where the disk fails, wait before it continues."""
        owned = self._store.of(key)
        try:
            await _Run(self, owned, batch_id, self._ask(key)).run()
        except OSError as error:
            logger.error("batch %s waits: %s", batch_id, error)
            await asyncio.sleep(_PAUSE)
        except Exception:
            logger.exception("batch %s failed", batch_id)
            await asyncio.to_thread(_give_up, owned, batch_id)

    def requests(self, owned: Owned, record: Record) -> BatchRequests:
        """Return the requests of a batch."""
        return BatchRequests(owned.files.content(record.input_file_id), record.endpoint, self._max_request_bytes)

    @property
    def slots(self) -> Slots:
        """How many requests are asked at a time."""
        return self._slots


class _Run:
    """One batch, from wherever it is to its end."""

    def __init__(self, runner: BatchRunner, owned: Owned, batch_id: str, ask: Ask) -> None:
        self._runner = runner
        self._owned = owned
        self._id = batch_id
        self._ask = ask
        self._name = f"batch_req_{batch_id.removeprefix('batch_')}"

    async def run(self) -> None:
        record = await asyncio.to_thread(self._owned.batches.stored, self._id)
        if record is not None and record.status not in (*ENDED, "finalizing"):
            await self._work(record)
        if record is not None and record.status not in ENDED:
            await asyncio.to_thread(self._publish, record)
        await asyncio.to_thread(self._owned.batches.close, self._id)

    async def _work(self, record: Record) -> None:
        """Ask the requests, and write down how it ended."""
        problem = None
        try:
            await asyncio.to_thread(self._require_input, record)
            if record.status == "validating":
                await asyncio.to_thread(self._validate, record)
            results = await asyncio.to_thread(Results, *self._owned.batches.results(self._id))
            try:
                await self._watch(record, results)
                record.ends_as = "completed"
            except _EndedEarly as early:
                if early.status == "expired":
                    await asyncio.to_thread(self._expire, record, results)
                raise
            finally:
                _count(record, results)
                await asyncio.to_thread(_close, results)
        except _EndedEarly as early:
            record.ends_as, problem = early.status, early.problem
        except ResultsError as error:  # somebody else wrote there
            record.ends_as, problem = "failed", BatchProblem(code="internal_error", message=str(error))
        if problem is not None:
            record.errors = BatchProblems(data=[problem])
        record.status, record.finalizing_at = "finalizing", now()
        await asyncio.to_thread(self._owned.batches.save, record)

    def _require_input(self, record: Record) -> None:
        if not self._owned.files.content(record.input_file_id).exists():
            message = f"The input file {record.input_file_id} is not there any more."
            raise _EndedEarly("failed", BatchProblem(code="no_file", message=message, param="input_file_id"))

    def _validate(self, record: Record) -> None:
        if self._owned.batches.is_cancelled(self._id):
            raise _EndedEarly("cancelled")
        total = count_requests(self._owned.files.content(record.input_file_id), MAX_REQUESTS, MAX_LINES)
        if not 1 <= total <= MAX_REQUESTS:
            count = f"more than {MAX_REQUESTS}" if total else "no"
            message = f"The input file must have 1 to {MAX_REQUESTS} requests, a line each; it has {count}."
            raise _EndedEarly("failed", BatchProblem(code="bad_file", message=message, param="input_file_id"))
        record.request_counts.total = total
        record.status, record.in_progress_at = "in_progress", now()
        self._owned.batches.save(record)

    async def _watch(self, record: Record, results: Results) -> None:
        """Ask the requests, and look now and then whether they are still to be asked."""
        requests = self._runner.requests(self._owned, record)
        work = asyncio.create_task(work_through(requests, results, self._runner.slots, self._ask, self._name))
        try:
            while not work.done():
                await asyncio.to_thread(self._look, record)
                await asyncio.wait((work,), timeout=_LOOK)
                _count(record, results)
                await asyncio.to_thread(results.sync)
                await asyncio.to_thread(self._owned.batches.save, record)
            work.result()
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    def _look(self, record: Record) -> None:
        """Raise that the batch is to end."""
        if self._owned.batches.is_cancelled(self._id):
            raise _EndedEarly("cancelled")
        if record.expires_at <= now():
            raise _EndedEarly("expired")
        try:
            self._owned.files.require_room(more=False)
        except QuotaError as error:
            raise _EndedEarly("failed", BatchProblem(code="quota_exceeded", message=str(error))) from None

    def _expire(self, record: Record, results: Results) -> None:
        """Describe each request that is left that it came too late."""
        for request in self._runner.requests(self._owned, record):
            if request.line not in results.done:
                results.add(request.line, error_line(self._name, request, "batch_expired", _EXPIRED), is_error=True)

    def _publish(self, record: Record) -> None:
        """Make the results files, and the batch one that has ended. Whatever of it was done already is done again."""
        output, errors = self._owned.batches.results(self._id)
        for path, file_id, name in (
            (output, record.output_id, "output"),
            (errors, record.errors_id, "error"),
        ):
            is_begun = self._owned.files.content(file_id).exists()
            if is_begun or (path.exists() and path.stat().st_size):
                filename = f"{self._id}_{name}.jsonl"
                self._owned.files.adopt(path, file_id, filename, "batch_output", record.results_seconds)
                setattr(record, f"{name}_file_id", file_id)
            else:
                path.unlink(missing_ok=True)
        record.status = record.ends_as
        setattr(record, f"{record.ends_as}_at", now())
        if record.ends_as == "cancelled":
            record.cancelling_at = record.finalizing_at
        self._owned.batches.save(record)


def _close(results: Results) -> None:
    try:
        results.sync()
    finally:
        results.close()


def _count(record: Record, results: Results) -> None:
    record.request_counts.completed, record.request_counts.failed = results.completed, results.failed


def _give_up(owned: Owned, batch_id: str) -> None:
    """End a batch that broke us, so that it does not do so again and again."""
    with contextlib.suppress(OSError, ValueError):
        record = owned.batches.stored(batch_id)
        if record is not None and record.status not in ENDED:
            problem = BatchProblem(code="internal_error", message="The server had an error while it ran this batch.")
            record.status, record.failed_at = "failed", now()
            record.errors = BatchProblems(data=[problem])
            owned.batches.save(record)
        owned.batches.close(batch_id)
