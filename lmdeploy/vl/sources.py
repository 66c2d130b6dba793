"""Where pictures come from: URLs, data URLs, files, pictures; and which of them a caller may name."""

import base64
import binascii
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from PIL.Image import Image

from lmdeploy.vl.decoding import Limits, check_size, decode, upright
from lmdeploy.vl.fetching import FetchRules, default_seconds, fetch

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")
_DATA_URL = re.compile(r"data:(image/[\w.+-]+)?;base64,", re.ASCII | re.IGNORECASE)
_NO_FILE = "must be a picture's URL that is allowed, a data URL, or a file in the allowed folder"


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
        Of every picture.
    max_pictures, max_total_pixels
        Most pictures, and most pixels of all of them, of a prompt.
    """

    fetch_rules: FetchRules = field(default_factory=FetchRules)
    folder: Path | None = None
    limits: Limits = field(default_factory=Limits)
    max_pictures: int = 64
    max_total_pixels: int = 150_000_000


ANYTHING = SourceRules(FetchRules(("*",), allows_private=True), Path("/"), Limits(10**9, 178_956_970), 10**6, 10**12)
"""For callers who are this process's own user."""
DATA_ONLY = SourceRules()
"""For callers from elsewhere: what they bring along."""


def url_scheme(text: str) -> str:
    """Return the scheme a text begins with, in small letters; empty for a path."""
    match = _SCHEME.match(text)
    return match[1].lower() if match else ""


def load(source: object, rules: SourceRules) -> Image:
    """Return a picture from what a caller names.

    Raises
    ------
    ValueError
        If it is nothing a picture comes from, is not allowed, or is no picture.
    """
    if isinstance(source, Image):
        check_size(source, rules.limits)
        return upright(source)
    if not isinstance(source, str):
        raise ValueError(f"must be a picture, a URL, a data URL or a path, got {type(source).__name__}")
    scheme = url_scheme(source)
    if scheme == "data":
        return decode(_data(source, rules.limits), rules.limits)
    if scheme in ("http", "https"):
        fetched = replace(rules.fetch_rules, max_bytes=rules.limits.max_bytes, seconds=default_seconds())
        return decode(fetch(source, fetched), rules.limits)
    return decode(read_file(source, rules), rules.limits)


def decoded_base64(text: str | bytes, limits: Limits) -> bytes:
    """Return the bytes that base64 stands for.

    Raises
    ------
    ValueError
        If it is none, or too long.
    """
    if len(text) > limits.max_bytes * 4 // 3 + 4:
        raise ValueError(f"a picture's file must have at most {limits.max_bytes} bytes, got more")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"the picture is no base64 ({error})") from None


def _data(url: str, limits: Limits) -> bytes:
    match = _DATA_URL.match(url)
    if match is None:
        raise ValueError("a data URL must begin with data:image/...;base64,")
    return decoded_base64(url[match.end() :], limits)


def read_file(path: str, rules: SourceRules) -> bytes:
    """Return the content of a file that a caller names, by path or ``file://``.

    Raises
    ------
    ValueError
        If it is not there, or may not be named; which of them is not told.
    """
    path = path.removeprefix("file://")
    if rules.folder is None:
        raise ValueError(_NO_FILE)
    try:
        real = Path(path).expanduser().resolve(strict=True)
        if not real.is_relative_to(rules.folder.resolve()) or not real.is_file():
            raise ValueError(_NO_FILE)
        if real.stat().st_size > rules.limits.max_bytes:
            raise ValueError(f"a picture's file must have at most {rules.limits.max_bytes} bytes")
        return real.read_bytes()
    except (OSError, RuntimeError) as error:
        raise ValueError(_NO_FILE) from error
