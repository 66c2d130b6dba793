"""A serving command in its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping

from tests.support.waiting import eventually_sync


class Command:
    """``lmdeploy serve ...``, with everything it prints; ended at the latest when the ``with`` block is."""

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lmdeploy", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **(env or {})},
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

    def wait_for(self, text: str, timeout: float = 180) -> None:
        """Return once it has printed `text`."""
        eventually_sync(lambda: text in self.output or not self._reader.is_alive(), timeout=timeout)
        assert text in self.output, self.output

    def end(self, signum: int = signal.SIGTERM, timeout: float = 180) -> int:
        """Send a signal and return the exit status."""
        self.process.send_signal(signum)
        return self.process.wait(timeout)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
