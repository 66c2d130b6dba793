"""Supervisor of a tritonserver: start it again when it dies, loses a model, stays not ready or responds no more."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from lmdeploy.serve.errors import TritonStartError
from lmdeploy.serve.tritonserver import TritonServer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RestartPolicy:
    """Restart conditions and delays, in seconds."""

    # A server that fails is started again at once; if it fails again the wait is `first_delay`, and doubles
    first_delay: float = 1.0
    max_delay: float = 30.0
    stable_after: float = 60.0  # a server that ran this long is started again at once
    unready_after: float = 30.0  # a server that is not ready for this long is killed
    poll_interval: float = 1.0  # between two questions whether it is ready
    check_interval: float = 0.25  # between two looks whether it lives, which costs next to nothing
    probe_interval: float = 10.0  # between two short texts that are tokenized as those of requests are
    # A server that does not tokenize one in this time is killed. The engine watches its own steps
    silent_after: float = 60.0


class Supervisor:
    """Watch a started server in a thread, from `start` until `stop`."""

    def __init__(self, server: TritonServer, policy: RestartPolicy | None = None) -> None:
        self._server = server  # started and ready. The supervisor stops it in the end
        self._policy = policy or RestartPolicy()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="triton supervisor", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, and stop the server."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._server.stop()

    def _watch(self) -> None:
        failures = 0  # that followed each other
        while not self._stopping.is_set():
            begin = time.monotonic()
            self._until_it_fails()
            if self._stopping.is_set():
                return
            self._server.stop(grace=0)
            failures = 1 if time.monotonic() - begin > self._policy.stable_after else failures + 1
            delay = self._delay(failures)
            logger.error("tritonserver is started again in %.0f s", delay)
            if self._stopping.wait(delay):
                return
            try:
                self._server.start()
            except TritonStartError as error:
                logger.error("tritonserver could not be started again: %s", error)

    def _delay(self, failures: int) -> float:
        """Return the wait after this many failures in a row."""
        if failures == 1:
            return 0.0
        return min(self._policy.first_delay * 2.0 ** min(failures - 2, 30), self._policy.max_delay)

    def _until_it_fails(self) -> None:
        """Return when the server has ended, been unready or silent for too long, or `stop` was called."""
        last_ready = time.monotonic()
        next_question = last_ready + self._policy.poll_interval
        probe: _Probe | None = None
        try:
            while self._server.is_running and not self._stopping.wait(self._policy.check_interval):
                if time.monotonic() < next_question:
                    continue
                if self._server.is_ready():
                    last_ready = time.monotonic()
                    probe = probe or _Probe(self._server, self._policy)
                next_question = time.monotonic() + self._policy.poll_interval
                if self._server.has_lost_a_model():
                    logger.error("a Python model of tritonserver has ended")
                    return
                if probe is None:
                    continue
                if time.monotonic() - last_ready > self._policy.unready_after:
                    logger.error("tritonserver has not been ready for %.0f s", self._policy.unready_after)
                    return
                if probe.is_silent:
                    logger.error("tritonserver has not tokenized a short text in %.0f s", self._policy.silent_after)
                    return
        finally:
            if probe is not None:
                probe.stop()
        if not self._stopping.is_set():
            logger.error("%s", self._server.failure("tritonserver ended"))


class _Probe:
    """Sends short texts through a ready server's preprocessing."""

    def __init__(self, server: TritonServer, policy: RestartPolicy) -> None:
        self.is_silent = False  # whether one was not tokenized in time
        self._server, self._policy = server, policy
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="triton probe", daemon=True).start()

    def stop(self) -> None:
        """End it, without waiting for a response."""
        self._stopped.set()

    def _run(self) -> None:
        while not self.is_silent and not self._stopped.wait(self._policy.probe_interval):
            self.is_silent = not self._server.prepares_prompts(self._policy.silent_after)
