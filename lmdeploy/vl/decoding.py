"""Image decoding to RGB within limits; an oversized or invalid file is rejected before it is unpacked."""

import io
import re
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from PIL import Image, ImageOps, PngImagePlugin, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Supported formats; Pillow knows more, some of which start programs."""
# Pillow's exceptions for truncated or invalid files.
_BROKEN = (OSError, SyntaxError, LookupError, EOFError, TypeError)
_MAX_SCANS = 100  # of a JPEG file; cameras and programs write up to a dozen, each of which goes through all pixels
_MAX_SCANNED = 10**9  # pixels, of all scans together, where these are more than
_USUAL_SCANS = 20
# In the data of a scan every 0xFF has a zero after it, or the number of a restart.
_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")
_PNG = b"\x89PNG\r\n\x1a\n"
_TEXTS = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
_SMALLEST_SIDE = 2
_LARGEST_RATIO = 200


@dataclass(frozen=True)
class Limits:
    """Upper bounds of an image.

    ``max_bytes``: bytes of its file. ``max_pixels``: width times height, as the file's beginning says.
    """

    max_bytes: int = 20_000_000
    max_pixels: int = 50_000_000


def decode(content: bytes, limits: Limits) -> Image.Image:
    """Return the image in a file's bytes: RGB, upright, its transparent parts white, of an animation the first frame.

    Raises `ValueError` if it is no image of a known format, broken, or beyond a limit.
    """
    with open_image(content, limits, "an image") as image:
        check_size(image, limits)
        image.load()
        return upright(image)


@contextmanager
def open_image(content: bytes, limits: Limits, what: str) -> Iterator[Image.Image]:
    """Open a file's bytes, of which nothing is unpacked yet; what Pillow raises meanwhile becomes ``ValueError``.

    ``content``, ``limits``: the file, and how many bytes it may have. ``what``: what it must be, for the error.
    """
    if len(content) > limits.max_bytes:
        raise ValueError(f"an image's file must have at most {limits.max_bytes} bytes, got {len(content)}")
    content = _without_long_texts(content)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit here is ours
            image = Image.open(io.BytesIO(content), formats=FORMATS)
        _check_scans(image, content)
        yield image
    except UnidentifiedImageError:
        known = ", ".join(FORMATS)
        raise ValueError(f"must be {what} ({known}), got {len(content)} bytes of something else") from None
    except Image.DecompressionBombError:
        raise ValueError(f"an image must have at most {limits.max_pixels} pixels, got far more") from None
    except ValueError:
        raise
    except MemoryError:
        raise ValueError("the image takes more memory than there is for it") from None
    except _BROKEN as error:
        raise ValueError(f"the image is broken: {' '.join(str(error).split())[:200]}") from error


def _without_long_texts(content: bytes) -> bytes:
    """Return a PNG file without the texts and profiles that are too long for Pillow: no pixel needs them."""
    if not content.startswith(_PNG):
        return content
    kept: list[bytes] = []
    offset, begin, left = len(_PNG), 0, PngImagePlugin.MAX_TEXT_MEMORY
    while offset + 12 <= len(content):
        kind, end = content[offset + 4 : offset + 8], offset + 12 + int.from_bytes(content[offset : offset + 4], "big")
        length = _text_length(kind, content[offset + 8 : end - 4]) if kind in _TEXTS else 0
        if length is None or length > left:
            kept.append(content[begin:offset])
            begin = end
        else:
            left -= length
        offset = end
    return b"".join([*kept, content[begin:]]) if kept else content


def _text_length(kind: bytes, chunk: bytes) -> int | None:
    """Return how many bytes a text has once it is unpacked (PNG, third edition, 11.3); None: too many."""
    _, _, text = chunk.partition(b"\0")
    is_packed = kind != b"tEXt"
    if kind == b"iTXt":
        is_packed, text = text[:1] == b"\1", text[2:].split(b"\0", 2)[-1]
    elif is_packed:
        text = text[1:]  # behind the method
    if not is_packed:
        return len(text)
    unpacker = zlib.decompressobj()
    try:
        length = len(unpacker.decompress(text, PngImagePlugin.MAX_TEXT_CHUNK))
    except zlib.error:
        return 0
    return None if unpacker.unconsumed_tail else length


def check_size(image: Image.Image, limits: Limits) -> None:
    """Raise ``ValueError`` for an image that is too large, or no area."""
    width, height = image.size
    if width * height > limits.max_pixels:
        raise ValueError(f"an image must have at most {limits.max_pixels} pixels, got {width} x {height}")
    if min(width, height) < _SMALLEST_SIDE or max(width, height) > _LARGEST_RATIO * min(width, height):
        raise ValueError(
            f"an image must be at least {_SMALLEST_SIDE} pixels wide and high, and at most {_LARGEST_RATIO} times as "
            f"long as wide, got {width} x {height}"
        )


def _check_scans(image: Image.Image, content: bytes) -> None:
    """Raise ``ValueError`` for a JPEG file of many scans: a few bytes each, they take seconds together."""
    if image.format not in ("JPEG", "MPO"):
        return
    limit = min(_MAX_SCANS, max(_USUAL_SCANS, _MAX_SCANNED // (image.width * image.height or 1)))
    if content.count(b"\xff\xda") > limit and (count := _scans(content, image.format == "MPO")) > limit:
        raise ValueError(f"a JPEG image of {image.width} x {image.height} must have at most {limit} scans, got {count}")


def _scans(content: bytes, has_several: bool) -> int:
    """Return how many scans a JPEG file, or one with several images, has."""
    count, offset = 0, 2
    while match := _MARKER.search(content, offset):
        marker, offset = match[1][0], match.end()
        if marker in (0x01, 0xD8, 0xD9):  # nothing comes with these
            if marker == 0xD9 and not has_several:
                break
            continue
        count += marker == 0xDA
        offset += int.from_bytes(content[offset : offset + 2], "big")
    return count


def upright(image: Image.Image) -> Image.Image:
    """Return an image as RGB, turned as its file says, transparent parts white, 16 bits a channel scaled to 8."""
    turned = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I") or turned.mode == "F":
        return _eight_bits(turned).convert("RGB")
    if turned.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in turned.info:
        seen = turned.convert("RGBA")
        white = Image.new("RGBA", seen.size, "white")
        return Image.alpha_composite(white, seen).convert("RGB")
    return turned.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return a grey image of wide numbers with 0 to 65535 as 0 to 255; Pillow itself cuts off what is over 255."""
    import numpy as np

    values = np.asarray(image, dtype=np.float64)
    is_16_bit = image.mode != "F" or values.max(initial=0) > 255
    return Image.fromarray(np.clip(values / 257 if is_16_bit else values, 0, 255).round().astype(np.uint8), "L")
