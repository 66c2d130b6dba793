"""Gateway workers on one port: a gateway uses one core; past that, they share the work."""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir

from prometheus_client.multiprocess import mark_process_dead

from lmdeploy.scratch import Scratch
from lmdeploy.serve.child import ChildProcess
from lmdeploy.serve.heap import resume_collection, trim_heap
from lmdeploy.serve.multi_model.registry import Registry
from openai_gateway.process.ledger import cancel_requests, open_requests
from openai_gateway.process.server import Listening
from openai_gateway.process.worker import ENVIRONMENT, READY, Assignment, gateway_server
from openai_gateway.qos import Qos
from openai_gateway.settings import Settings

logger = logging.getLogger(__name__)

_START = 60.0  # seconds
_POLL = 0.2
_GRACE = 5.0  # beyond the drain


class WorkerError(Exception):
    """The workers could not be started; the text says why."""


def serve_until_stopped(
    settings: Settings,
    listening: Listening,
    *,
    workers: int,
    on_ready: Callable[[], None],  # called once when connections are accepted
    # Called before; a gateway in this process is made first, while the model is loaded
    wait_for_model: Callable[[], None] = lambda: None,
) -> None:
    """Block until SIGINT, or whatever signal the caller turned into an exception.

    Raises `WorkerError` if several processes were wanted, and one did not start, and `QosConfigError` if the policy
    file is unusable.
    """
    trim_heap()
    if workers == 1:
        server = gateway_server(settings, listening, on_ready)
        wait_for_model()
        server.run()
        return
    if settings.qos_config_path is not None:
        Qos.load(settings.qos_config_path, settings.api_keys)  # say what is wrong once, here
    wait_for_model()
    Workers(Assignment(settings, listening), workers, on_ready).run()


class Workers:
    """Gateway processes, from ``run`` until the thread is interrupted by an exception such as KeyboardInterrupt.

    ``assignment``: what they serve. Only the first one registers at a proxy.
    """

    def __init__(self, assignment: Assignment, count: int, on_ready: Callable[[], None]) -> None:
        others = replace(assignment, settings=replace(assignment.settings, proxy_url=None))
        self._assignments = [assignment, *[others] * (count - 1)]
        self._on_ready = on_ready  # called once when all accept connections
        self._ready = [threading.Event() for _ in range(count)]
        self._children: list[ChildProcess] = []

    def run(self) -> None:
        """Start them, and start again those that end; raise `WorkerError` if one did not start."""
        with Scratch(Path(gettempdir()), "lmdeploy-metrics-") as metrics:
            self._metrics = metrics
            try:
                for number in range(len(self._assignments)):
                    self._children.append(self._start(number))
                self._wait_ready()
                self._on_ready()
                resume_collection()
                while True:
                    time.sleep(_POLL)
                    self._restart_dead()
            finally:
                self._stop()

    def _start(self, number: int) -> ChildProcess:
        given = self._assignments[number]
        given = replace(given, settings=replace(given.settings, ledger=self._ledger(number)))
        assignment = b64encode(pickle.dumps(given)).decode()
        env = {**os.environ, ENVIRONMENT: assignment, "PROMETHEUS_MULTIPROC_DIR": str(self._metrics)}

        def log(line: str) -> None:
            if line == READY:
                self._ready[number].set()
            else:
                sys.stderr.write(f"{line}\n")  # at once: other workers' lines come in other threads
                sys.stderr.flush()

        return ChildProcess([sys.executable, "-m", "openai_gateway.process.worker"], env=env, log=log)

    def _ledger(self, number: int) -> Path:
        return self._metrics / f"open-requests-{number}"

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _START
        for child, ready in zip(self._children, self._ready, strict=True):
            while not ready.wait(_POLL):
                if child.returncode is not None or time.monotonic() > deadline:
                    raise WorkerError("a gateway worker did not start:\n" + "\n".join(child.tail()[-20:]))

    def _restart_dead(self) -> None:
        for number, child in enumerate(self._children):
            if child.returncode is not None:
                logger.error("gateway worker %d ended with status %s; starting another", number, child.returncode)
                child.kill()
                mark_process_dead(child.pid, str(self._metrics))  # type: ignore[no-untyped-call]  # its open requests
                left = open_requests(self._ledger(number))
                self._ledger(number).unlink(missing_ok=True)
                self._children[number] = self._start(number)
                settings = self._assignments[number].settings
                cancel_requests(settings.triton_address, left, _engines(settings))

    def _stop(self) -> None:
        grace = self._assignments[0].settings.drain_seconds + _GRACE
        threads = [threading.Thread(target=child.stop, args=(grace,)) for child in self._children]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _engines(settings: Settings) -> list[str]:
    """Return the suffixes of the engines behind a gateway."""
    if settings.models_dir is None:
        return [""]
    return [model.suffix for model in Registry(settings.models_dir).models()]
