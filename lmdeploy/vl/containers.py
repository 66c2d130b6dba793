"""Videos in MP4, WebM and other containers: PyAV (extra ``video``) decodes the sampled frames."""

import io
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from lmdeploy.extras import MissingExtraError, require
from lmdeploy.vl.decoding import Limits

_MAX_STORED = 1 << 18  # frames of a file: over an hour of 60 a second
_MAX_DECODED = 4096  # frames; each that is looked at needs those since the key frame before it


@dataclass(frozen=True)
class Container:
    """A kind of file: where its magic bytes begin, those, its name, and what FFmpeg calls it."""

    begin: int
    magic: bytes
    name: str
    format: str


_CONTAINERS = (
    Container(4, b"ftyp", "MP4 or QuickTime", "mov"),
    Container(0, b"\x1a\x45\xdf\xa3", "WebM or Matroska", "matroska"),
    Container(8, b"AVI ", "AVI", "avi"),
    Container(0, b"FLV\x01", "Flash", "flv"),
    Container(0, b"OggS", "Ogg", "ogg"),
    Container(0, b"\x00\x00\x01\xba", "MPEG", "mpeg"),
    Container(0, b"\x00\x00\x01\xb3", "MPEG", "mpegvideo"),
)


def container_of(content: bytes) -> Container | None:
    """Return the kind of container that a file begins as; None: none of these."""
    return next((kind for kind in _CONTAINERS if content[kind.begin :].startswith(kind.magic)), None)


def read_container(
    content: bytes,
    kind: Container,
    limits: Limits,  # of its bytes, and of a frame's pixels
    # From how many frames there are, and the size of one, to the ascending numbers of those that are looked at
    choose: Callable[[int, tuple[int, int]], Sequence[int]],
) -> tuple[list[Image.Image], list[float]]:
    """Return frames of the first video in a container, and the second at which each is shown.

    Raises `ValueError` if PyAV is not there, or the file is broken, has no video or is beyond a limit.
    """
    if len(content) > limits.max_bytes:
        raise ValueError(f"a video's file must have at most {limits.max_bytes} bytes, got {len(content)}")
    try:
        require("video", f"decoding {kind.name} files")
    except MissingExtraError as error:
        raise ValueError(f"{error}; or send an animated GIF, WebP or PNG, or the frames") from None
    import av

    try:
        with av.open(io.BytesIO(content), format=kind.format, metadata_errors="ignore") as container:
            if not container.streams.video:
                raise ValueError(f"{kind.name} file without a video")
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            size = (stream.codec_context.width, stream.codec_context.height)
            if not 0 < size[0] * size[1] <= limits.max_pixels:
                raise ValueError(f"a frame must have 1 to {limits.max_pixels} pixels, got {size[0]} x {size[1]}")
            stamps, keys = _stamps(container)
            sampled = [stamps[index] for index in choose(len(stamps), size)]
            frames = _decoded(container, keys, sampled, size)
            seconds = [float((stamp - stamps[0]) * (stream.time_base or 1)) for stamp in sampled]
            return frames, seconds
    except (av.FFmpegError, EOFError) as error:
        raise ValueError(f"broken {kind.name} file ({error})") from None


def _stamps(container: Any) -> tuple[list[int], list[int]]:
    """Return the times of all frames, ascending, and of those that decode alone; nothing is decoded for it."""
    stamps, keys = [], []
    for packet in container.demux(video=0):
        if packet.pts is None or packet.is_discard:  # cut away by the file's list of edits
            continue
        stamps.append(int(packet.pts))
        if packet.is_keyframe:
            keys.append(int(packet.pts))
        if len(stamps) > _MAX_STORED:
            raise ValueError(f"a video's file must have at most {_MAX_STORED} frames")
    if not stamps or not keys:
        raise ValueError("broken video: it has no frames with times")
    return sorted(stamps), sorted(keys)


def _decoded(container: Any, keys: list[int], sampled: Sequence[int], size: tuple[int, int]) -> list[Image.Image]:
    """Return the frames of some times, from the key frame before each on."""
    frames: list[Image.Image] = []
    decoding: Iterator[Any] = iter(())
    stream, at, count = container.streams.video[0], -1, 0
    for stamp in sampled:
        key = keys[max(bisect_right(keys, stamp) - 1, 0)]
        if at < key or not frames:
            container.seek(key, stream=stream)
            decoding = container.decode(video=0)
        for frame in decoding:
            count += 1
            if count > _MAX_DECODED:
                raise ValueError(f"more than {_MAX_DECODED} frames are to be decoded; num_frames makes them fewer")
            if (frame.width, frame.height) != size:
                raise ValueError("the frames of a video must have one size")
            at = frame.pts if frame.pts is not None else at
            if at >= stamp:
                frames.append(_upright(frame))
                break
        else:
            raise ValueError("broken video: it ends before its last frame")
    return frames


def _upright(frame: Any) -> Image.Image:
    image: Image.Image = frame.to_image()
    angle = getattr(frame, "rotation", 0)  # counterclockwise
    return image.rotate(angle, expand=True) if angle % 360 else image
