"""Videos: some frames of one size, each with the second it is shown at.

What is between is not looked at. Frames come one by one, in an animated image, or in a container (`containers.py`).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from PIL import Image

from lmdeploy.vl.containers import container_of, read_container
from lmdeploy.vl.decoding import Limits, check_size, open_image, upright

Source = TypeVar("Source")
MAX_FRAMES = 128  # that are looked at, of one video
DEFAULT_FRAMES = 32
DEFAULT_RATE = 2.0  # frames a second, where nothing says
_MAX_STORED = 4096  # frames of a file
_DEFAULT_MILLISECONDS = 100.0  # of a frame, where a file says nothing: as browsers show them


@dataclass(frozen=True)
class Video:
    """Frames of a video.

    Raises `ValueError` if they do not fit together. ``frames``: of one size, in order. ``times``: the second at which
    each is shown.
    """

    frames: tuple[Image.Image, ...]
    times: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.frames or len(self.frames) != len(self.times):
            raise ValueError(f"a video must have frames and a time for each, got {len(self.frames)}, {len(self.times)}")
        if len({frame.size for frame in self.frames}) > 1:
            raise ValueError("the frames of a video must have one size")
        rising = all(later >= earlier >= 0 for earlier, later in zip(self.times, self.times[1:], strict=False))
        if not rising or not all(math.isfinite(time) for time in self.times):
            raise ValueError(f"the times of a video's frames must rise from 0 on, got {self.times!r:.200}")

    def stacked(self) -> Image.Image:
        """Return one image with the frames below each other."""
        width, height = self.frames[0].size
        whole = Image.new("RGB", (width, height * len(self.frames)))
        for index, frame in enumerate(self.frames):
            whole.paste(frame, (0, index * height))
        return whole


@dataclass(frozen=True)
class Sampling:
    """Which frames are looked at.

    ``num_frames``: at most this many, spread evenly. ``fps``: frames a second of what comes as frames alone.
    """

    num_frames: int = DEFAULT_FRAMES
    fps: float = DEFAULT_RATE

    def __post_init__(self) -> None:
        if type(self.num_frames) is not int or not 1 <= self.num_frames <= MAX_FRAMES:
            raise ValueError(f"num_frames must be a whole number from 1 to {MAX_FRAMES}, got {self.num_frames!r}")
        if type(self.fps) not in (int, float) or not 0 < self.fps <= 1000:
            raise ValueError(f"fps must be a number of frames a second, over 0 and at most 1000, got {self.fps!r}")

    def chosen(self, count: int) -> list[int]:
        """Return which of ``count`` frames: the first, the last and others between."""
        if count <= self.num_frames:
            return list(range(count))
        if self.num_frames == 1:
            return [count // 2]
        return [round(i * (count - 1) / (self.num_frames - 1)) for i in range(self.num_frames)]


def times_of(options: Mapping[str, Any]) -> Sequence[float]:
    """Return the seconds of a video's frames, of how it is to be processed; none for an image."""
    times: Sequence[float] = options.get("times") or ()
    return times


def frame_size(size: tuple[int, int], options: Mapping[str, Any]) -> tuple[int, int]:
    """Return width and height of an image, or of one of the frames that are below each other in it."""
    width, height = size
    return width, height // max(1, len(times_of(options)))


def frames_in(stacked: Image.Image, count: int) -> list[Image.Image]:
    """Return the frames of an image in which they are below each other."""
    width, height = stacked.size[0], stacked.size[1] // count
    return [stacked.crop((0, index * height, width, (index + 1) * height)) for index in range(count)]


def from_frames(
    sources: Sequence[Source], load: Callable[[Source], Image.Image], sampling: Sampling, max_total_pixels: int
) -> Video:
    """Return a video of frames without their own times, of which those are loaded that are looked at.

    Raises `ValueError` if there are none, they differ in size, or are too large together.
    """
    chosen = sampling.chosen(len(sources))
    frames: list[Image.Image] = []
    for index in chosen:
        frames.append(load(sources[index]))
        check_all(len(chosen), frames[0].size, max_total_pixels)
        if frames[-1].size != frames[0].size:
            raise ValueError(f"the frames of a video must have one size, got {frames[0].size} and {frames[-1].size}")
    return Video(tuple(frames), tuple(index / sampling.fps for index in chosen))


def from_file(content: bytes, sampling: Sampling, limits: Limits, max_total_pixels: int) -> Video:
    """Return the video in the bytes of an animated image or a container.

    Raises `ValueError` if it is none, broken, or beyond a limit: of bytes, of a frame's pixels, of frames, or of the
    pixels of all.
    """
    kind = container_of(content)
    if kind is not None:

        def choose(count: int, size: tuple[int, int]) -> list[int]:
            sampled = sampling.chosen(count)
            check_all(len(sampled), size, max_total_pixels)
            return sampled

        shown, times = read_container(content, kind, limits, choose)
        return Video(tuple(shown), tuple(times))
    with open_image(content, limits, "an animated image") as animation:
        check_size(animation, limits)
        durations = [_shown(animation) for _ in _frame_indices(animation, max_total_pixels)]
    sampled = sampling.chosen(len(durations))
    starts = [sum(durations[:index]) / 1000 for index in sampled]
    frames = []
    with open_image(content, limits, "an animated image") as animation:
        for index in sampled:
            animation.seek(index)
            frames.append(upright(animation))
    return Video(tuple(frames), tuple(starts))


def check_all(count: int, size: tuple[int, int], max_total_pixels: int) -> None:
    """Raise ``ValueError`` for frames that together are too large."""
    if count * size[0] * size[1] > max_total_pixels:
        raise ValueError(
            f"the frames of a prompt's videos must have at most {max_total_pixels} pixels together, "
            f"got {count} of {size[0]} x {size[1]}; num_frames makes them fewer"
        )


def _frame_indices(animation: Image.Image, max_total_pixels: int) -> Iterator[int]:
    """Yield the number of each frame, at which the file then is; to get to one all before it have to be unpacked."""
    pixels = animation.width * animation.height
    index = 0
    while True:
        try:
            animation.seek(index)
        except EOFError:
            return
        if index >= _MAX_STORED or (index + 1) * pixels > max_total_pixels:
            raise ValueError(
                f"a video's file must have at most {_MAX_STORED} frames, and {max_total_pixels} pixels in all of "
                f"them, got more ({animation.width} x {animation.height} each)"
            )
        yield index
        index += 1


def _shown(animation: Image.Image) -> float:
    """Return for how many milliseconds the frame that the file is at is shown."""
    animation.load()
    duration = animation.info.get("duration")
    return float(duration) if isinstance(duration, (int, float)) and 0 < duration < math.inf else _DEFAULT_MILLISECONDS
