"""Commands of ``lmdeploy`` in their own processes, as users start them."""

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


class Command:
    """``lmdeploy ...``, with everything it prints; ended at the latest when the ``with`` block is."""

    def __init__(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        stdin: int = subprocess.DEVNULL,
        new_session: bool = False,
        before: Callable[[], None] | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [python, "-m", "lmdeploy", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=stdin,
            env={**os.environ, **(env or {})},
            start_new_session=new_session,
            preexec_fn=before,
        )
        self.output = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(180)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(180)

    def wait_for(self, text: str, count: int = 1, timeout: float = 180) -> None:
        """Return once it has printed `text` this many times."""
        eventually_sync(lambda: self.output.count(text) >= count or not self._reader.is_alive(), timeout)
        assert self.output.count(text) >= count, self.output

    def end(self, signum: int = signal.SIGTERM, timeout: float = 180) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(signum)
        return self.status(timeout)

    def status(self, timeout: float = 180) -> int:
        """Return the exit status once it has ended."""
        status = self.process.wait(timeout)
        self._reader.join(180)
        return status

    def _read(self) -> None:
        assert self.process.stdout is not None
        while chunk := self.process.stdout.read1():  # type: ignore[attr-defined]
            self.output += chunk.decode(errors="replace")


class TerminalCommand(Command):
    """A command that talks in a terminal: type into it, wait for what it shows."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(*arguments, stdin=subprocess.PIPE)

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        super().__exit__(*exception)

    def type(self, text: str) -> None:
        """Type lines, each ended by Enter."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n".encode())
        self.process.stdin.flush()

    def close_input(self) -> None:
        """Press Ctrl-D."""
        assert self.process.stdin is not None
        self.process.stdin.close()


class ApiServer(Command):
    """``lmdeploy serve api_server``, running in its own session."""

    def __init__(self, *arguments: str, triton_grpc_port: int | None = None, **more: object) -> None:
        self.port, http, grpc, metrics = free_ports(4)
        grpc = triton_grpc_port or grpc
        ports = {"server": self.port, "triton-http": http, "triton-grpc": grpc, "triton-metrics": metrics}
        flags = [word for name, port in ports.items() for word in (f"--{name}-port", str(port))]
        super().__init__("serve", "api_server", *arguments, *flags, new_session=True, **more)  # type: ignore[arg-type]
        self.url = f"http://127.0.0.1:{self.port}"
        self.triton_address = f"127.0.0.1:{grpc}"
        self.triton_http_port = http
        self.metrics_url = f"http://127.0.0.1:{metrics}/metrics"

    def wait_ready(self) -> None:
        self.wait_for(READY, timeout=START)

    def pids(self, program: str) -> list[int]:
        """Return the processes that the command started itself and whose command line has a word."""
        return [pid for pid in children(self.process.pid) if program in command_line(pid)]

    def triton_pid(self) -> int:
        (pid,) = self.pids("bin/tritonserver")
        return pid


@contextmanager
def api_server(*arguments: str, **more: object) -> Iterator[ApiServer]:
    """Start one; kill it in the end if it still runs."""
    server = ApiServer(*arguments, **more)  # type: ignore[arg-type]
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.end(signal.SIGKILL)
