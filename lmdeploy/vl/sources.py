"""Where images come from: URLs, data URLs, files, images; and which of them a caller may name."""

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from PIL.Image import Image

from lmdeploy.vl.decoding import Limits, check_size, decode, upright
from lmdeploy.vl.fetching import FetchRules, default_seconds, fetch
from lmdeploy.vl.videos import MOST_FRAMES, Sampling, Video, check_all, from_file, from_frames

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_DATA_URL = re.compile(r"data:(image/[\w.+-]+)?;base64,", re.ASCII | re.IGNORECASE)
_VIDEO_URL = re.compile(r"data:((?:image|video)/[\w.+-]+)?;base64,", re.ASCII | re.IGNORECASE)
_FRAMES_URL = re.compile(r"data:video/(jpeg|png|webp);base64,", re.ASCII | re.IGNORECASE)  # one after another
_NO_FILE = "must be an image's URL that is allowed, a data URL, or a file in the folder of --allowed-local-media-path"


class Decoder(Protocol):
    """Makes images of files' bytes."""

    def image(self, content: bytes, limits: Limits) -> Image:
        """As `lmdeploy.vl.decoding.decode`."""

    def video(self, content: bytes, sampling: Sampling, limits: Limits, max_total_pixels: int) -> Video:
        """As `lmdeploy.vl.videos.from_file`."""


class InThisProcess:
    """Decodes where it is called: for files that are the user's own."""

    image = staticmethod(decode)
    video = staticmethod(from_file)


@dataclass(frozen=True)
class SourceRules:
    """What a caller may name.

    Parameters
    ----------
    fetch_rules
        URLs.
    folder
        Files in it may be named, by path or ``file://``; ``/``: all; None: none.
    limits
        Of every image.
    max_images, max_total_pixels
        Most images and videos, and most pixels of all of them, of a prompt.
    decoder
        What decodes files.
    """

    fetch_rules: FetchRules = field(default_factory=FetchRules)
    folder: Path | None = None
    limits: Limits = field(default_factory=Limits)
    max_images: int = 64
    max_total_pixels: int = 150_000_000
    decoder: Decoder = field(default_factory=InThisProcess)


ANYTHING = SourceRules(FetchRules(("*",), allows_private=True), Path("/"), Limits(10**9, 178_956_970), 10**6, 10**12)
"""For callers who are this process's own user."""
DATA_ONLY = SourceRules()
"""For callers from elsewhere: what they bring along."""


def url_scheme(text: str) -> str:
    """Return the scheme a text begins with, in small letters; empty for a path."""
    match = _SCHEME.match(text)
    return match[1].lower() if match else ""


def load(source: object, rules: SourceRules) -> Image:
    """Return an image from what a caller names.

    Raises
    ------
    ValueError
        If it is nothing an image comes from, is not allowed, or is no image.
    """
    if isinstance(source, Image):
        check_size(source, rules.limits)
        return upright(source)
    if not isinstance(source, str):
        raise ValueError(f"must be an image, a URL, a data URL or a path, got {type(source).__name__}")
    return rules.decoder.image(_content(source, rules, _DATA_URL), rules.limits)


def load_frames(source: object, sampling: Sampling, rules: SourceRules) -> Video:
    """Return a video from what a caller names: an animated image, its frames one by one, or a video.

    Raises
    ------
    ValueError
        If it is nothing a video comes from, is not allowed, or is none.
    """
    if isinstance(source, Video):
        check_size(source.frames[0], rules.limits)
        check_all(len(source.frames), source.frames[0].size, rules.max_total_pixels)
        if len(source.frames) > MOST_FRAMES:
            raise ValueError(f"a video must have at most {MOST_FRAMES} frames, got {len(source.frames)}")
        return Video(tuple(upright(frame) for frame in source.frames), source.times)
    frames: Sequence[object] | None = source if isinstance(source, (list, tuple)) else None
    if isinstance(source, str) and (match := _FRAMES_URL.match(source)):
        frames = [f"data:image/{match[1]};base64,{frame}" for frame in source[match.end() :].split(",")]
    if frames is not None:
        return from_frames(frames, lambda frame: load(frame, rules), sampling, rules.max_total_pixels)
    if not isinstance(source, str):
        raise ValueError(f"must be a video, frames, a URL, a data URL or a path, got {type(source).__name__}")
    content = _content(source, rules, _VIDEO_URL)
    return rules.decoder.video(content, sampling, rules.limits, rules.max_total_pixels)


def _content(source: str, rules: SourceRules, data_url: re.Pattern[str]) -> bytes:
    """Return the bytes of the file that a caller names."""
    scheme = url_scheme(source)
    if scheme == "data":
        return _data(source, rules.limits, data_url)
    if scheme in ("http", "https"):
        return fetch(source, replace(rules.fetch_rules, max_bytes=rules.limits.max_bytes, seconds=default_seconds()))
    return read_file(source, rules)


def decoded_base64(text: str | bytes, limits: Limits) -> bytes:
    """Return the bytes that base64 stands for.

    Raises
    ------
    ValueError
        If it is none, or too long.
    """
    if len(text) > limits.max_bytes * 4 // 3 + 4:
        raise ValueError(f"an image's file must have at most {limits.max_bytes} bytes, got more")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"the image is no base64 ({error})") from None


def _data(url: str, limits: Limits, data_url: re.Pattern[str]) -> bytes:
    match = data_url.match(url)
    if match is None:
        raise ValueError("a data URL must begin with data:image/...;base64,")
    return decoded_base64(url[match.end() :], limits)


def read_file(path: str, rules: SourceRules) -> bytes:
    """Return the content of a file that a caller names, by path or ``file://``.

    Raises
    ------
    ValueError
        If it is not there, or may not be named; which of them is not given.
    """
    path = path.removeprefix("file://")
    if rules.folder is None:
        raise ValueError(_NO_FILE)
    try:
        real = Path(path).expanduser().resolve(strict=True)
        if not real.is_relative_to(rules.folder.resolve()) or not real.is_file():
            raise ValueError(_NO_FILE)
        if real.stat().st_size > rules.limits.max_bytes:
            raise ValueError(f"an image's file must have at most {rules.limits.max_bytes} bytes")
        with real.open("rb") as file:
            return file.read(rules.limits.max_bytes)
    except (OSError, RuntimeError) as error:
        raise ValueError(_NO_FILE) from error
