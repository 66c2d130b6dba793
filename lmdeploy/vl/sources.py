"""Allowed image sources: URLs, data URLs, files, images; and which of them a caller may name."""

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from PIL.Image import Image

from lmdeploy.vl.decoding import Limits, check_size, decode, upright
from lmdeploy.vl.fetching import FetchRules, default_seconds, fetch
from lmdeploy.vl.videos import MAX_FRAMES, Sampling, Video, check_all, from_file, from_frames

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
# Type, subtype, parameters such as a charset.
_DATA_URL = re.compile(
    r"data:\s*(?:([\w.+-]+)/([\w.+-]+))?\s*(?:;[^,;]{0,200}){0,16};\s*base64\s*,", re.ASCII | re.IGNORECASE
)
_FRAMES = ("jpeg", "png", "webp")  # of a video: images one after another
_NO_FILE = "must be an image's URL that is allowed, a data URL, or a file in the folder of --allowed-local-media-path"


class Decoder(Protocol):
    """Makes images of files' bytes."""

    def image(self, content: bytes, limits: Limits) -> Image:
        """As `lmdeploy.vl.decoding.decode`."""

    def video(self, content: bytes, sampling: Sampling, limits: Limits, max_total_pixels: int) -> Video:
        """As `lmdeploy.vl.videos.from_file`."""

    def for_prompt(self) -> "Decoder":
        """Return a decoder for the files of one prompt."""


class InThisProcess:
    """Decodes where it is called: for files that are the user's own."""

    image = staticmethod(decode)
    video = staticmethod(from_file)

    def for_prompt(self) -> Decoder:
        """Return itself: there is no budget."""
        return self


@dataclass(frozen=True)
class SourceRules:
    """Image sources that a caller may name."""

    fetch_rules: FetchRules = field(default_factory=FetchRules)  # URLs
    folder: Path | None = None  # files in it may be named, by path or ``file://``; ``/``: all; None: none
    limits: Limits = field(default_factory=Limits)  # of every image
    # Most images and videos, and most pixels of all of them, of a prompt
    max_images: int = 64
    max_total_pixels: int = 150_000_000
    decoder: Decoder = field(default_factory=InThisProcess)  # what decodes files


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

    Raises `ValueError` if it is nothing an image comes from, is not allowed, or is no image.
    """
    if isinstance(source, Image):
        check_size(source, rules.limits)
        return upright(source)
    if not isinstance(source, str):
        raise ValueError(f"must be an image, a URL, a data URL or a path, got {type(source).__name__}")
    return rules.decoder.image(_content(source, rules, ("image",)), rules.limits)


def load_frames(source: object, sampling: Sampling, rules: SourceRules) -> Video:
    """Return a video from what a caller names: an animated image, its frames one by one, or a video.

    Raises `ValueError` if it is nothing a video comes from, is not allowed, or is none.
    """
    if isinstance(source, Video):
        check_size(source.frames[0], rules.limits)
        check_all(len(source.frames), source.frames[0].size, rules.max_total_pixels)
        if len(source.frames) > MAX_FRAMES:
            raise ValueError(f"a video must have at most {MAX_FRAMES} frames, got {len(source.frames)}")
        return Video(tuple(upright(frame) for frame in source.frames), source.times)
    frames: Sequence[object] | None = source if isinstance(source, (list, tuple)) else None
    if isinstance(source, str) and (match := _DATA_URL.match(source)) and _is_of_frames(match):
        frames = [f"data:image/{match[2]};base64,{frame}" for frame in source[match.end() :].split(",")]
    if frames is not None:
        return from_frames(frames, lambda frame: load(frame, rules), sampling, rules.max_total_pixels)
    if not isinstance(source, str):
        raise ValueError(f"must be a video, frames, a URL, a data URL or a path, got {type(source).__name__}")
    content = _content(source, rules, ("image", "video"))
    return rules.decoder.video(content, sampling, rules.limits, rules.max_total_pixels)


def _is_of_frames(match: re.Match[str]) -> bool:
    return (match[1] or "").lower() == "video" and match[2].lower() in _FRAMES


def _content(source: str, rules: SourceRules, kinds: tuple[str, ...]) -> bytes:
    """Return the bytes of the file that a caller names; ``kinds``: what a data URL may say it is."""
    scheme = url_scheme(source)
    if scheme == "data":
        return data_of(source, rules.limits, kinds)
    if scheme in ("http", "https"):
        return fetch(source, replace(rules.fetch_rules, max_bytes=rules.limits.max_bytes, seconds=default_seconds()))
    return read_file(source, rules)


def decoded_base64(text: str | bytes, limits: Limits) -> bytes:
    """Return the bytes that base64 stands for, with or without its padding, in one line or in several.

    Raises `ValueError` if it is none, or too long.
    """
    text = "".join((text.decode("ascii", "replace") if isinstance(text, bytes) else text).split())
    if len(text) > limits.max_bytes * 4 // 3 + 4:
        raise ValueError(f"an image's file must have at most {limits.max_bytes} bytes, got more")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"the image is no base64 ({error})") from None


def data_of(url: str, limits: Limits, kinds: tuple[str, ...]) -> bytes:
    """Return the bytes in a data URL (RFC 2397), whose type may have parameters and be missing.

    Raises `ValueError` if it is of a type of no kind in ``kinds``, has no base64, or is too long.
    """
    match = _DATA_URL.match(url)
    if match is None or (match[1] or kinds[0]).lower() not in kinds:
        raise ValueError("a data URL must begin with data:image/...;base64,")
    text = url[match.end() :]
    return decoded_base64(unquote(text) if "%" in text else text, limits)


def read_file(path: str, rules: SourceRules) -> bytes:
    """Return the content of a file that a caller names, by path or ``file://``.

    Raises `ValueError` if it is not there, or may not be named; which of them is not given.
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
