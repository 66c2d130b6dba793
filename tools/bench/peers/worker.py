"""A peer in a process of its own environment, asked by lines of JSON."""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_STOP_SECONDS = 20


class Worker:
    """A process that answers each line of JSON with one; made by :func:`worker`."""

    def __init__(self, name: str, process: "subprocess.Popen[str]", log: Path) -> None:
        self._name = name
        self._process = process
        self._log = log

    def ask(self, question: Any) -> Any:
        """Return the answer to a question.

        Raises
        ------
        RuntimeError
            The process ended; the message ends with what it printed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            printed = self._log.read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"{self._name} ended while it answered:\n{printed[-2000:]}")
        return json.loads(line)


@contextmanager
def worker(name: str, python: Path, program: Path, *arguments: object) -> Iterator[Worker]:
    """Run a program for as long as the block lasts; it ends when its input does.

    Parameters
    ----------
    name
        Of the peer, for messages.
    python, program, arguments
        The interpreter, and what it runs.
    """
    # -P: the folder of the program, whose modules are named after peers, is no place to import from.
    command: Sequence[str] = [str(python), "-P", str(program), *map(str, arguments)]
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield Worker(name, process, Path(log.name))
        finally:
            try:
                process.communicate(timeout=_STOP_SECONDS)  # closes its input, and so ends it
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
