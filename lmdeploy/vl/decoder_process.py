"""Decodes images of callers in its own process, with limits of memory and time: a file may be made to cost both.

The process is started with the first image and decodes all that follow, one after another. It is started again when a
file was too much for it.

On both pipes a message is its header's length (4 bytes, little-endian), the header (JSON) and bytes whose number the
header says: the file, or the RGB pixels of one frame after another.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from dataclasses import asdict
from typing import IO, Any

from PIL import Image

from lmdeploy.vl.decoding import Limits
from lmdeploy.vl.videos import Sampling, Video

_LENGTH = struct.Struct("<I")
_PIPED = 1 << 20  # bytes in a pipe: as many as Linux allows users
_LATE = (-signal.SIGPROF, -signal.SIGALRM)


class DecoderProcess:
    """Decodes images and videos. Safe to use from any thread.

    Parameters
    ----------
    cpu_seconds
        Time of a processor for one file.
    memory_bytes
        Address space of the process.
    """

    def __init__(self, cpu_seconds: float = 5.0, memory_bytes: int = 2 << 30) -> None:
        self._cpu_seconds = cpu_seconds
        self._memory_bytes = memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def image(self, content: bytes, limits: Limits) -> Image.Image:
        """Return the image in a file's bytes; as `lmdeploy.vl.decoding.decode`.

        Raises
        ------
        ValueError
            As there, or if it takes too long or too much memory.
        """
        [frame], _ = self._decoded({"limits": asdict(limits)}, content, limits.max_pixels)
        return frame

    def video(self, content: bytes, sampling: Sampling, limits: Limits, max_total_pixels: int) -> Video:
        """Return the video in a file's bytes; as `lmdeploy.vl.videos.from_file`, and `image`."""
        wanted = {"limits": asdict(limits), "sampling": asdict(sampling), "max_total_pixels": max_total_pixels}
        frames, times = self._decoded(wanted, content, max_total_pixels)
        return Video(tuple(frames), tuple(times))

    def close(self) -> None:
        """End the process; another image starts another one."""
        with self._lock:
            self._end()

    def _decoded(
        self, wanted: dict[str, Any], content: bytes, max_pixels: int
    ) -> tuple[list[Image.Image], list[float]]:
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                send(process.stdin, wanted, content)
                response = receive(process.stdout, 3 * max_pixels)
            except BrokenPipeError:
                response = None
            except BaseException:
                self._end()  # half of a response may be left in the pipe
                raise
            if response is None:
                raise ValueError(self._problem())
        said, pixels = response
        if "error" in said:
            raise ValueError(said["error"])
        width, height = said["size"]
        view, size = memoryview(pixels), 3 * width * height
        frames = [
            Image.frombytes("RGB", (width, height), view[begin : begin + size]) for begin in range(0, len(pixels), size)
        ]
        return frames, said["times"]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        command = [os.environ.get("LMDEPLOY_PYTHON") or sys.executable, "-m", "lmdeploy.vl.decoder_worker"]
        command += [str(self._cpu_seconds), str(self._memory_bytes)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # slower
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPED)
        return self._process

    def _problem(self) -> str:
        """Return why there was no response."""
        code = self._end()
        if code in _LATE:
            return f"the image takes longer than {self._cpu_seconds:g} s to decode"
        return f"the image ended what decodes images (status {code})"

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


def send(pipe: IO[bytes], header: dict[str, Any], content: bytes) -> None:
    """Write a message."""
    text = json.dumps(header | {"bytes": len(content)}).encode()
    pipe.write(_LENGTH.pack(len(text)) + text)
    pipe.write(content)
    pipe.flush()


def receive(pipe: IO[bytes], most: int) -> tuple[dict[str, Any], bytearray] | None:
    """Return the next message; None if there is no whole one any more, or none of at most this many bytes."""
    start = pipe.read(_LENGTH.size)
    if len(start) < _LENGTH.size:
        return None
    text = pipe.read(_LENGTH.unpack(start)[0])
    try:
        header: dict[str, Any] = json.loads(text)
        content = bytearray(min(header["bytes"], most + 1))
    except (ValueError, KeyError, TypeError):
        return None
    if len(content) > most:
        return None
    view, have = memoryview(content), 0
    while have < len(content):
        count = pipe.readinto(view[have:])  # type: ignore[attr-defined]
        if not count:
            return None
        have += count
    return header, content
