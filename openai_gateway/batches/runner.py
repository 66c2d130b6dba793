"""Batch runner of a folder: in one process at a time, from where the last one stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection

from lmdeploy.serve.events import is_set_within
from openai_gateway.batches.records import ENDED, BatchProblem, Record, Status
from openai_gateway.batches.requests import MAX_LINES, MAX_REQUESTS, BatchRequests, count_requests, error_line
from openai_gateway.batches.results import Results, ResultsError
from openai_gateway.batches.store import Owned, QuotaError, Store
from openai_gateway.batches.work import Dispatch, Slots, work_through
from openai_gateway.database import now, owner_name

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0  # seconds between looks at what other processes have left
_LOCK = 2.0  # seconds between tries to become the one who runs batches
_CLEAN = 600.0  # seconds
_PAUSE = 10.0  # seconds after a failure of the disk
_EXPIRED = "the batch's completion window was over before this request was made"


class _Ended(Exception):
    """The requests that are left are not asked any more."""

    def __init__(self, status: Status, code: str = "", message: str = "", param: str | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.problem = BatchProblem(code=code, message=message, param=param) if code else None


class BatchRunner:
    """The batches of all owners whose keys there are, one of each owner's at a time."""

    def __init__(
        self,
        store: Store,
        keys: Collection[str],  # the API keys; empty: there are none
        slots: Slots,
        dispatch: Callable[[str | None], Dispatch],  # returns what answers requests for the holder of a key
        max_request_bytes: int,
    ) -> None:
        self._store = store
        owners: list[str | None] = [*keys] or [None]
        self._keys = {owner_name(key): key for key in owners}
        self._slots = slots
        self._dispatch = dispatch
        self._max_request_bytes = max_request_bytes
        self._running: dict[str, asyncio.Task[None]] = {}
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
        next_clean = 0.0
        try:
            while True:
                self._new.clear()
                pause = _POLL_SECONDS
                try:
                    if time.monotonic() >= next_clean:
                        next_clean = time.monotonic() + _CLEAN
                        await asyncio.to_thread(self._store.clean)
                    waiting = await asyncio.to_thread(self._store.waiting)
                    for owner in (waiting.keys() & self._keys) - self._running.keys():
                        self._begin(owner, waiting[owner])
                except OSError as error:
                    logger.error("files and batches cannot be read: %s", error)
                    pause = _PAUSE
                await is_set_within(self._new, pause)
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)
            os.close(lock)

    async def _lock(self) -> int:
        while True:
            try:
                if (lock := self._store.lock()) is not None:
                    return lock
            except OSError as error:
                logger.error("files and batches cannot be kept: %s", error)
            await asyncio.sleep(_LOCK)

    def _begin(self, owner: str, batch_id: str) -> None:
        self._running[owner] = task = asyncio.create_task(self._guarded(self._keys[owner], batch_id))

        def ended(ended_task: asyncio.Task[None]) -> None:
            del self._running[owner]
            self._new.set()
            if not ended_task.cancelled():
                ended_task.exception()  # seen; what ends the process is reported elsewhere

        task.add_done_callback(ended)

    async def _guarded(self, key: str | None, batch_id: str) -> None:
        """Run a batch; where the disk fails, wait before it continues."""
        owned = self._store.of(key)
        try:
            if (record := await asyncio.to_thread(owned.batch, batch_id)) is None:
                return
            requests = BatchRequests(owned.content(record.input_file_id), record.endpoint, self._max_request_bytes)
            await _Run(owned, record, requests, self._slots, self._dispatch(key)).run()
        except OSError as error:
            logger.error("batch %s waits: %s", batch_id, error)
            await asyncio.sleep(_PAUSE)
        except Exception:
            logger.exception("batch %s failed", batch_id)
            await asyncio.to_thread(_fail, owned, batch_id)


class _Run:
    """One batch, from wherever it is to its end."""

    def __init__(self, owned: Owned, record: Record, requests: BatchRequests, slots: Slots, dispatch: Dispatch) -> None:
        self._owned = owned
        self._record = record
        self._requests = requests
        self._slots = slots
        self._dispatch = dispatch
        self._name = f"batch_req_{record.id.removeprefix('batch_')}"

    async def run(self) -> None:
        try:
            await asyncio.to_thread(self._validate)
            await self._work()
            end = _Ended("completed")
        except _Ended as early:
            end = early
        except ResultsError as error:  # somebody else wrote there
            end = _Ended("failed", "internal_error", str(error))
        await asyncio.to_thread(self._owned.end, self._record, end.status, end.problem)

    def _validate(self) -> None:
        record, path = self._record, self._owned.content(self._record.input_file_id)
        if not path.exists():
            message = f"The input file {path.name} is not there any more."
            raise _Ended("failed", "no_file", message, "input_file_id")
        if record.in_progress_at is not None:
            return
        if record.status == "cancelling":
            raise _Ended("cancelled")
        total = count_requests(path, MAX_REQUESTS, MAX_LINES)
        if not 1 <= total <= MAX_REQUESTS:
            count = f"more than {MAX_REQUESTS}" if total else "no"
            message = f"The input file must have 1 to {MAX_REQUESTS} requests, a line each; it has {count}."
            raise _Ended("failed", "bad_file", message, "input_file_id")
        record.request_counts.total = total
        record.status, record.in_progress_at = "in_progress", now()
        self._owned.save(record)

    async def _work(self) -> None:
        """Dispatch the requests, and look now and then whether the batch is still to run."""
        results = await asyncio.to_thread(Results, *self._owned.results(self._record.id))
        work = asyncio.create_task(work_through(self._requests, results, self._slots, self._dispatch, self._name))
        try:
            while not work.done():
                await asyncio.to_thread(self._poll)
                await asyncio.wait((work,), timeout=_POLL_SECONDS)
                await asyncio.to_thread(self._save, results)
            work.result()
        except _Ended as early:
            if early.status == "expired":
                await _stopped(work)
                await asyncio.to_thread(self._expire, results)
            raise
        finally:
            await _stopped(work)
            await asyncio.to_thread(self._close, results)

    def _poll(self) -> None:
        """Raise that the batch is to end."""
        seen = self._owned.batch(self._record.id)
        if seen is not None and seen.status == "cancelling":
            raise _Ended("cancelled")
        if self._record.expires_at <= now():
            raise _Ended("expired")
        try:
            self._owned.require_room()
        except QuotaError as error:
            raise _Ended("failed", "quota_exceeded", str(error)) from None

    def _expire(self, results: Results) -> None:
        """Describe each request that is left that it came too late."""
        for request in self._requests:
            if request.line not in results.done:
                results.add(request.line, error_line(self._name, request, "batch_expired", _EXPIRED), is_error=True)

    def _save(self, results: Results) -> None:
        self._count(results)
        results.sync()
        self._owned.save(self._record)

    def _close(self, results: Results) -> None:
        self._count(results)
        try:
            results.sync()
        finally:
            results.close()

    def _count(self, results: Results) -> None:
        counts = self._record.request_counts
        counts.completed, counts.failed = results.completed, results.failed


async def _stopped(work: asyncio.Task[None]) -> None:
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


def _fail(owned: Owned, batch_id: str) -> None:
    """End a batch that broke us, so that it does not do so again and again."""
    with contextlib.suppress(OSError, ValueError):
        record = owned.batch(batch_id)
        if record is not None and record.status not in ENDED:
            message = "The server had an error while it ran this batch."
            owned.end(record, "failed", BatchProblem(code="internal_error", message=message))
