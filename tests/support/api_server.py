"""``lmdeploy serve api_server`` in its own process, as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from lmdeploy.serve.ports import free_ports
from tests.support.processes import children, command_line
from tests.support.servers import START
from tests.support.waiting import eventually_sync

READY = "Ctrl-C stops everything."


class ApiServer:
    """The command, running in its own session."""

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
        triton_grpc_port: int | None = None,
        python: str = sys.executable,
    ) -> None:
        self.port, http, grpc, metrics = free_ports(4)
        grpc = triton_grpc_port or grpc
        ports = {"server": self.port, "triton-http": http, "triton-grpc": grpc, "triton-metrics": metrics}
        flags = [word for name, port in ports.items() for word in (f"--{name}-port", str(port))]
        self.process = subprocess.Popen(
            [python, "-m", "lmdeploy", "serve", "api_server", *arguments, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, **(env or {})},
            preexec_fn=before,
        )
        self.url = f"http://127.0.0.1:{self.port}"
        self.triton_address = f"127.0.0.1:{grpc}"
        self.triton_http_port = http
        self.metrics_url = f"http://127.0.0.1:{metrics}/metrics"
        self.output = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line

    def wait_ready(self) -> None:
        eventually_sync(lambda: READY in self.output or self.process.poll() is not None, timeout=START)
        assert READY in self.output, self.output

    def pids(self, program: str) -> list[int]:
        """Return the processes that the command started itself and whose command line has a word."""
        found = children(self.process.pid)
        return [pid for pid in found if program in command_line(pid)]

    def triton_pid(self) -> int:
        (pid,) = self.pids("bin/tritonserver")
        return pid

    def end(self, signum: int) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(signum)
        status = self.process.wait(180)
        self._reader.join(180)
        return status


@contextmanager
def api_server(*arguments: str, **more: object) -> Iterator[ApiServer]:
    """Start one; kill it in the end if it still runs."""
    server = ApiServer(*arguments, **more)  # type: ignore[arg-type]
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.end(signal.SIGKILL)
