"""A command that talks in a terminal, driven like one."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

from tests.support.waiting import eventually_sync


class TerminalCommand:
    """``lmdeploy ...`` as a process: type into it, wait for what it shows.

    Attributes
    ----------
    shown
        Everything it has printed so far.
    """

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lmdeploy", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.shown = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> TerminalCommand:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    def type(self, text: str) -> None:
        """Type lines, each ended by Enter."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n".encode())
        self._process.stdin.flush()

    def close_input(self) -> None:
        """Press Ctrl-D."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait_for(self, text: str, count: int = 1, timeout: float = 180.0) -> None:
        """Return once it has shown `text` this many times."""
        eventually_sync(lambda: self.shown.count(text) >= count or not self._reader.is_alive(), timeout)
        assert self.shown.count(text) >= count, self.shown

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def status(self, timeout: float = 180.0) -> int:
        """Return its exit status once it has ended."""
        status = self._process.wait(timeout)
        self._reader.join()
        return status

    def _read(self) -> None:
        assert self._process.stdout is not None
        while chunk := self._process.stdout.read1():  # type: ignore[attr-defined]
            self.shown += chunk.decode(errors="replace")
