"""Sandboxed decoder process for callers' images: ``python -m lmdeploy.vl.decoder_process``."""

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from PIL import Image

from lmdeploy.limited_process import LimitedProcess, Message, ProcessLimitError, handle_requests
from lmdeploy.vl.decoding import Limits, decode
from lmdeploy.vl.videos import Sampling, Video, from_file

if TYPE_CHECKING:
    from typing_extensions import Self

_SUBJECT = "decoding the image"


class DecoderProcess:
    """Decodes images and videos. Safe to use from any thread.

    ``cpu_seconds``: time of a processor for one file. ``memory_bytes``: address space of the process.
    """

    def __init__(self, cpu_seconds: float = 5.0, memory_bytes: int = 2 << 30, prompt_cpu_seconds: float = 10.0) -> None:
        self._process = LimitedProcess("lmdeploy.vl.decoder_process", _SUBJECT, cpu_seconds, memory_bytes)
        self._prompt_cpu_seconds = prompt_cpu_seconds  # time of a processor for all files of a prompt
        self._left: float | None = None  # of a prompt's time

    def for_prompt(self) -> Self:
        """Return a decoder for the files of one prompt, which share its time; for one thread."""
        other = copy.copy(self)
        other._left = self._prompt_cpu_seconds
        return other

    def image(self, content: bytes, limits: Limits) -> Image.Image:
        """Return the image in a file's bytes; as `lmdeploy.vl.decoding.decode`.

        Raises `ValueError` as there, or if it takes too long or too much memory.
        """
        [frame], _ = self._decoded({"limits": asdict(limits)}, content, limits.max_pixels)
        return frame

    def video(self, content: bytes, sampling: Sampling, limits: Limits, max_total_pixels: int) -> Video:
        """Return the video in a file's bytes; as `lmdeploy.vl.videos.from_file`, and `image`."""
        request = {"limits": asdict(limits), "sampling": asdict(sampling), "max_total_pixels": max_total_pixels}
        frames, times = self._decoded(request, content, max_total_pixels)
        return Video(tuple(frames), tuple(times))

    def close(self) -> None:
        """End the process; another image starts another one."""
        self._process.close()

    def _decoded(
        self, request: dict[str, Any], content: bytes, max_pixels: int
    ) -> tuple[list[Image.Image], list[float]]:
        try:
            header, pixels, seconds = self._process.request(
                request, content, max_bytes=3 * max_pixels, cpu_seconds=self._left
            )
        except ProcessLimitError as error:
            if self._left is None or self._left == self._prompt_cpu_seconds:
                raise
            raise ProcessLimitError(f"{error}: a prompt's have {self._prompt_cpu_seconds:g} s together") from None
        if self._left is not None:
            self._left -= seconds
        width, height = header["size"]
        view, size = memoryview(pixels), 3 * width * height
        frames = [
            Image.frombytes("RGB", (width, height), view[begin : begin + size]) for begin in range(0, len(pixels), size)
        ]
        return frames, header["times"]


def _handled(request: dict[str, Any], content: bytes) -> Message:
    limits = Limits(**request["limits"])
    if "sampling" in request:
        video = from_file(content, Sampling(**request["sampling"]), limits, request["max_total_pixels"])
    else:
        video = Video((decode(content, limits),), (0.0,))
    return {"size": video.frames[0].size, "times": video.times}, b"".join(frame.tobytes() for frame in video.frames)


if __name__ == "__main__":
    handle_requests(_SUBJECT, _handled)
