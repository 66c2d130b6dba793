"""Lanes of requests: each takes its callers in turn, and none waits for another.

Triton hands a Python model one request after another. A lane hands them on to its own threads, which respond to them
later: a short text neither waits for another caller's images nor behind a hundred of another caller's texts.
"""

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backend.end_with_server import end_with_server
from python_backend.inputs import text
from python_backend.respond import Cancelled, respond

logger = logging.getLogger(__name__)

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


@dataclass(frozen=True)
class Job:
    """A request, and what sends its response, if a lane does."""

    request: Any
    sender: Any = None
    dropped: threading.Event = field(default_factory=threading.Event)

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` if the caller left."""
        if self.dropped.is_set() or (self.sender is not None and self.sender.is_cancelled()):
            raise Cancelled


class Lanes:
    """The lanes of one model, and the jobs in them.

    ``threads``: number of threads by the name of the lane.
    """

    def __init__(self, outputs: Callable[[Job], dict[str, Any]], threads: dict[str, int]) -> None:
        self._outputs = outputs  # makes the output tensors of a job, as for `respond`
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}  # by the request's id, guarded by _lock
        self._queues = {name: FairQueue() for name in threads}
        end_with_server()
        for name, count in threads.items():
            for number in range(count):
                queue = self._queues[name]
                threading.Thread(target=self._run, args=(queue,), name=f"{name} {number}", daemon=True).start()

    def put(self, lane: str, request: Any) -> None:
        """Let a request wait for its turn in a lane."""
        job = Job(request, request.get_response_sender())
        with self._lock:
            self._jobs[request.request_id()] = job
        self._queues[lane].put(text(request, "caller") or "", job)

    def is_idle(self, lane: str) -> bool:
        """Return whether no request waits in a lane."""
        return self._queues[lane].is_empty

    def drop(self, request_id: str) -> None:
        """Stop working for a request whose caller left; an unknown one is ignored."""
        with self._lock:
            job = self._jobs.get(request_id)
        if job is not None:
            job.dropped.set()

    def _run(self, queue: "FairQueue") -> None:
        while True:
            self._handle(queue.get())

    def _handle(self, job: Job) -> None:
        def outputs(_: Any) -> dict[str, Any]:
            job.raise_if_cancelled()
            return self._outputs(job)

        response = respond(job.request, outputs)
        name = job.request.request_id()
        with self._lock:
            if self._jobs.get(name) is job:  # others may have its id, or none
                del self._jobs[name]
        try:
            job.sender.send(response, flags=_FINAL)
        except Exception:
            logger.exception("the response of request %s was not sent", name)


class FairQueue:
    """Items of several callers, taken in turn: one of each caller that has any."""

    def __init__(self) -> None:
        self._items: OrderedDict[str, deque[Any]] = OrderedDict()
        self._changed = threading.Condition()

    @property
    def is_empty(self) -> bool:
        """Whether no item waits."""
        return not self._items

    def put(self, caller: str, item: Any) -> None:
        """Add an item behind the caller's others."""
        with self._changed:
            self._items.setdefault(caller, deque()).append(item)
            self._changed.notify()

    def get(self) -> Any:
        """Take the first item of the caller whose turn it is; wait until there is one."""
        with self._changed:
            while not self._items:
                self._changed.wait()
            caller, items = self._items.popitem(last=False)
            item = items.popleft()
            if items:
                self._items[caller] = items  # behind all others
            return item
