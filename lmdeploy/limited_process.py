"""Sandboxed worker process with limits of CPU time and memory, for untrusted inputs.

Images are decoded and the chat templates of adapters are rendered there: a file may be made to cost both. The process
is started with the first request and handles all that follow, one after another. It is started again when one was too
much for it.

On both pipes a message is its header's length (4 bytes, little-endian), the header (JSON) and bytes whose number the
header says.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

Message = tuple[dict[str, Any], bytes | bytearray]

_LENGTH = struct.Struct("<I")
_PIPED = 1 << 20  # bytes in a pipe: as many as Linux allows users
_LATE = (-signal.SIGPROF, -signal.SIGALRM)
_WAITED = 10  # times the processor's time that a request may take by the clock, on a machine with other work
_NICENESS = 10  # behind the engine


class ProcessLimitError(ValueError):
    """A request took more time or memory than the process has for it."""


class LimitedProcess:
    """A Python module that handles requests in its own process, by `handle_requests`. Safe to use from any thread.

    ``module``: its name. ``subject``: what takes too long or too much memory then, for errors: ``decoding the image``.
    ``cpu_seconds``: time of a processor for one request. ``memory_bytes``: address space of the process.
    """

    def __init__(self, module: str, subject: str, cpu_seconds: float, memory_bytes: int) -> None:
        self._module, self._subject = module, subject
        self._cpu_seconds, self._memory_bytes = cpu_seconds, memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def request(
        self, header: dict[str, Any], content: bytes = b"", *, max_bytes: int, cpu_seconds: float | None = None
    ) -> tuple[dict[str, Any], bytearray, float]:
        """Return header and bytes of the response to a request, and the seconds of a processor that it took.

        ``max_bytes``: of a response. ``cpu_seconds``: what the request may take, where that is less than the process
        allows. Raises `ProcessLimitError` if it takes too long or too much memory. Raises `ValueError` if the module
        refuses it.
        """
        seconds = self._cpu_seconds if cpu_seconds is None else min(cpu_seconds, self._cpu_seconds)
        if seconds <= 0:
            raise ProcessLimitError(f"{self._subject} takes longer than there is time for")
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                _send(process.stdin, header | {"cpu_seconds": seconds}, content)
                response = _receive(process.stdout, max_bytes)
            except BrokenPipeError:
                response = None
            except BaseException:
                self._end()  # half of a response may be left in the pipe
                raise
            if response is None:
                raise ProcessLimitError(self._problem(seconds))
        reply, result = response
        if "error" in reply:
            raise (ProcessLimitError if reply["is_limit"] else ValueError)(reply["error"])
        return reply, result, reply["taken"]

    def close(self) -> None:
        """End the process; another request starts another one."""
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        command = [os.environ.get("LMDEPLOY_PYTHON") or sys.executable, "-m", self._module, str(self._memory_bytes)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # slower
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPED)
        return self._process

    def _problem(self, seconds: float) -> str:
        """Return why there was no response."""
        code = self._end()
        if code in _LATE:
            return f"{self._subject} takes longer than {seconds:g} s"
        return f"{self._subject} ended the process that works on it (status {code})"

    def _end(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        try:
            return process.wait(1)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def handle_requests(subject: str, handle: Callable[[dict[str, Any], bytes], Message]) -> None:
    """Respond to the requests of a `LimitedProcess` until there are no more, or one takes too long.

    ``subject``: as there. ``handle``: makes a response of a request; its ``ValueError`` refuses it.
    """
    memory = int(sys.argv[1])
    requests, responses = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints
    os.nice(_NICENESS)
    for limit, maximum in (("RLIMIT_AS", memory), ("RLIMIT_CORE", 0), ("RLIMIT_FSIZE", 0)):
        resource.setrlimit(getattr(resource, limit), (maximum, maximum))
    while (message := _receive(requests, memory)) is not None:
        header, content = message
        seconds = header["cpu_seconds"]
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, _WAITED * seconds)
        begin = _cpu_time()
        try:
            reply, result = handle(header, bytes(content))
        except (MemoryError, ValueError) as error:
            is_limit = isinstance(error, MemoryError)
            text = f"{subject} takes too much memory" if is_limit else str(error)
            reply, result = {"error": text, "is_limit": is_limit}, b""
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(responses, reply | {"taken": _cpu_time() - begin}, result)


def _cpu_time() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _send(pipe: IO[bytes], header: dict[str, Any], content: bytes | bytearray) -> None:
    text = json.dumps(header | {"bytes": len(content)}).encode()
    pipe.write(_LENGTH.pack(len(text)) + text)
    pipe.write(content)
    pipe.flush()


def _receive(pipe: IO[bytes], max_bytes: int) -> tuple[dict[str, Any], bytearray] | None:
    """Return the next message; None if there is no whole one any more, or none of at most this many bytes."""
    start = pipe.read(_LENGTH.size)
    if len(start) < _LENGTH.size:
        return None
    text = pipe.read(_LENGTH.unpack(start)[0])
    try:
        header: dict[str, Any] = json.loads(text)
        content = bytearray(min(header["bytes"], max_bytes + 1))
    except (ValueError, KeyError, TypeError):
        return None
    if len(content) > max_bytes:
        return None
    view, have = memoryview(content), 0
    while have < len(content):
        count = pipe.readinto(view[have:])  # type: ignore[attr-defined]
        if not count:
            return None
        have += count
    return header, content
