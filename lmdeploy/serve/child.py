"""Child process that ends with its parent, and the end of its output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lmdeploy.serve import exec_with_parent

_KEPT_LINES = 200


class ChildProcess:
    """Start a program in its own process group, which is killed with this process at the latest.

    ``command``: absolute path of the program, and its arguments.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], log: Callable[[str], None]) -> None:
        wrapper = [sys.executable, "-I", "-S", str(Path(exec_with_parent.__file__)), str(os.getpid())]
        self._command = [*wrapper, *command]
        self._env = dict(env)
        self._log = log  # gets each line the program prints, in its own thread
        self._tail: deque[str] = deque(maxlen=_KEPT_LINES)
        self._process: subprocess.Popen[str] | None = None
        self._started = threading.Event()
        # The kernel takes the thread that started a child for its parent, so the reading thread, which lives
        # as long as the child does, is the one to start it.
        self._thread = threading.Thread(target=self._start_and_read, name="child", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._process is None:
            raise OSError(f"could not start {command[0]}")

    @property
    def pid(self) -> int:
        """Its process, and its process group."""
        assert self._process is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the exit status, or None when it still runs after `timeout` seconds."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def tail(self) -> list[str]:
        """Return the last lines it printed; all of them once it has ended."""
        if self.returncode is not None:
            self._thread.join(timeout=1)
        return list(self._tail)

    def stop(self, grace: float) -> None:
        """Ask it to end, wait `grace` seconds, then kill whatever is left of its process group."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            self.wait(grace)
        self.kill()

    def kill(self) -> None:
        """Kill its whole process group, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        self._thread.join(timeout=1)

    def _start_and_read(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
                errors="replace",
            )
        finally:
            self._started.set()
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._tail.append(line.rstrip("\n"))
                self._log(self._tail[-1])
        self._process.wait()
