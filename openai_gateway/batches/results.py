"""Result files of a batch: complete lines survive a crash."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import orjson

from openai_gateway.batches.requests import line_of


class ResultsError(ValueError):
    """A file is not what results can be added to; the text says why."""


class _File:
    """One file of results, open at its end, and the lines whose whole results it holds.

    Raises `ResultsError` or `OSError` as `Results`.
    """

    def __init__(self, path: Path, done: set[int]) -> None:
        self.path = path
        self.size = 0
        self.lines: set[int] = set()
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read(done)
        except BaseException as error:
            os.close(self.descriptor)
            if isinstance(error, BlockingIOError):
                raise ResultsError(f"another process writes to {path}") from None
            raise

    def append(self, result: bytes) -> None:
        """Add a result, all of it or nothing."""
        written = 0
        try:
            while written < len(result):
                written += os.write(self.descriptor, result[written:])
        except OSError as error:
            os.ftruncate(self.descriptor, self.size)
            error.filename = str(self.path)
            raise
        self.size += len(result)

    def _read(self, done: set[int]) -> None:
        """Note whose results there are; cut off what follows the last whole one."""
        with self.path.open("rb") as file:
            for text in file:
                if (found := line_of(text)) is None:
                    _require_torn(self.path, text, self.size)
                    break
                if (line := found[1]) in done:
                    raise ResultsError(f"{self.path} has a second result of line {line}")
                self.size += len(text)
                self.lines.add(line)
                done.add(line)
        os.ftruncate(self.descriptor, self.size)


class Results:
    """Two files, of responses and of errors; a request is in one of them, once.

    Raises `ResultsError` if one of them holds something else, or another process writes to it, and `OSError` if one
    cannot be written. ``output``, ``errors``: the files. Where they are there already, what is whole in them counts as
    done, and half a line that a killed process left is cut off.
    """

    def __init__(self, output: Path, errors: Path) -> None:
        self.done: set[int] = set()  # the lines of the input that have a result
        self._files: list[_File] = []
        try:
            for path in (output, errors):
                self._files.append(_File(path, self.done))
        except BaseException:
            self.close()
            raise

    @property
    def completed(self) -> int:
        """Requests that were answered."""
        return len(self._files[0].lines)

    @property
    def failed(self) -> int:
        """Requests that were refused or failed."""
        return len(self._files[1].lines)

    def add(self, line: int, result: bytes, *, is_error: bool) -> None:
        """Write down the result of a line of the input.

        Raises `OSError` if it cannot be written, for example because the disk is full; the files are as before.
        """
        file = self._files[is_error]
        file.append(result)
        file.lines.add(line)
        self.done.add(line)

    def sync(self) -> None:
        """Bring everything to the disk itself, where a loss of power leaves it."""
        for file in self._files:
            os.fsync(file.descriptor)

    def close(self) -> None:
        """Close the files; one that holds nothing is removed."""
        while self._files:
            file = self._files.pop()
            if not file.size:
                file.path.unlink(missing_ok=True)
            os.close(file.descriptor)


def ids_in(path: Path) -> Iterator[tuple[str, int, str | None]]:
    """Yield of each whole result in a file how its id begins, its line and its ``custom_id``."""
    with path.open("rb") as file:
        for text in file:
            if (found := line_of(text)) is not None:
                yield *found, orjson.loads(text)["custom_id"]


def _require_torn(path: Path, text: bytes, size: int) -> None:
    """Check that a line that is no result is half of one, or what a loss of power left behind some whole ones."""
    begin = b'{"id":"batch_req'
    if size == 0 and not text.startswith(begin) and not begin.startswith(text) and text.strip(b"\0"):
        raise ResultsError(f"{path} holds something else than results of a batch; name another file, or remove it")
