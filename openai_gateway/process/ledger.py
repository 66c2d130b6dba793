"""Ledger of a worker's open engine requests, in a file: another process cancels them if the worker is killed.

Triton does not tell an ensemble's models that a connection broke, so the engine would finish these responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from lmdeploy.serve.client import TritonClient
from lmdeploy.serve.errors import TritonRequestError, TritonUnavailable

_MAX_LEN = 1 << 20  # bytes, before what is over is left out


class Ledger:
    """A worker's list. Every entry is a line, with a sign before the request's id, and written at once.

    ``path``: the file; a new one.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._open: set[str] = set()
        self._length = 0

    def begin(self, request_id: str) -> None:
        """Note a request that the engine is about to get."""
        self._open.add(request_id)
        self._write(f"+{request_id}\n")

    def end(self, request_id: str) -> None:
        """Note that the engine is done with a request."""
        self._open.discard(request_id)
        self._write(f"-{request_id}\n")
        if self._length > _MAX_LEN:
            os.ftruncate(self._file, 0)
            self._length = 0
            self._write("".join(f"+{name}\n" for name in self._open))

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk must not cost anybody a response
            self._length += os.write(self._file, text.encode())


def open_requests(path: Path) -> set[str]:
    """Return the requests that a worker had open; none where there is no such file."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8").splitlines():
            (found.add if line[:1] == "+" else found.discard)(line[1:])
    return found


def cancel_requests(triton_address: str, request_ids: set[str], suffixes: Sequence[str] = ("",)) -> None:
    """Cancel requests in the engine; those it does not know, or that cannot be asked to it any more, are let be.

    ``suffixes``: of the engines, where there are several: one of them has a request.
    """

    async def cancel(client: TritonClient, request_id: str) -> None:
        with contextlib.suppress(TritonUnavailable, TritonRequestError):
            await client.cancel(request_id)

    async def cancel_all() -> None:
        async with TritonClient(triton_address) as client:
            engines = [client.of_model(suffix) for suffix in suffixes]
            await asyncio.gather(*(cancel(engine, request_id) for engine in engines for request_id in request_ids))

    if request_ids:
        asyncio.run(cancel_all())
