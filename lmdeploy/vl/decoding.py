"""From a file's bytes to a picture that every model can take; what cannot be one is refused before it is unpacked."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""What is read; Pillow knows more, some of which start programs."""
# What Pillow raises for files that are cut off or make no sense.
_BROKEN = (OSError, SyntaxError, LookupError, EOFError, TypeError, MemoryError)
_SMALLEST_SIDE = 2
_LARGEST_RATIO = 200


@dataclass(frozen=True)
class Limits:
    """What a picture may have at most.

    Parameters
    ----------
    max_bytes
        Bytes of its file.
    max_pixels
        Width times height, as the file's beginning says.
    """

    max_bytes: int = 20_000_000
    max_pixels: int = 50_000_000


def decode(content: bytes, limits: Limits) -> Image.Image:
    """Return the picture in a file's bytes: RGB, upright, its transparent parts white, of an animation the first frame.

    Raises
    ------
    ValueError
        If it is no picture of a known format, broken, or beyond a limit.
    """
    with open_picture(content, limits, "a picture") as picture:
        check_size(picture, limits)
        picture.load()
        return upright(picture)


@contextmanager
def open_picture(content: bytes, limits: Limits, what: str) -> Iterator[Image.Image]:
    """Open a file's bytes, of which nothing is unpacked yet; what Pillow raises meanwhile becomes ``ValueError``.

    Parameters
    ----------
    content, limits
        The file, and how many bytes it may have.
    what
        What it must be, for the error.
    """
    if len(content) > limits.max_bytes:
        raise ValueError(f"a picture's file must have at most {limits.max_bytes} bytes, got {len(content)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit here is ours
            picture = Image.open(io.BytesIO(content), formats=FORMATS)
        yield picture
    except UnidentifiedImageError:
        known = ", ".join(FORMATS)
        raise ValueError(f"must be {what} ({known}), got {len(content)} bytes of something else") from None
    except Image.DecompressionBombError:
        raise ValueError(f"a picture must have at most {limits.max_pixels} pixels, got far more") from None
    except ValueError:
        raise
    except _BROKEN as error:
        raise ValueError(f"the picture is broken: {' '.join(str(error).split())[:200]}") from error


def check_size(picture: Image.Image, limits: Limits) -> None:
    """Raise ``ValueError`` for a picture that is too large, or no area."""
    width, height = picture.size
    if width * height > limits.max_pixels:
        raise ValueError(f"a picture must have at most {limits.max_pixels} pixels, got {width} x {height}")
    if min(width, height) < _SMALLEST_SIDE or max(width, height) > _LARGEST_RATIO * min(width, height):
        raise ValueError(
            f"a picture must be at least {_SMALLEST_SIDE} pixels wide and high, and at most {_LARGEST_RATIO} times as "
            f"long as wide, got {width} x {height}"
        )


def upright(picture: Image.Image) -> Image.Image:
    """Return a picture as RGB, turned as its file says, transparent parts white, 16 bits a channel scaled to 8."""
    turned = ImageOps.exif_transpose(picture)
    if turned.mode.startswith("I") or turned.mode == "F":
        return _eight_bits(turned).convert("RGB")
    if turned.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in turned.info:
        seen = turned.convert("RGBA")
        white = Image.new("RGBA", seen.size, "white")
        return Image.alpha_composite(white, seen).convert("RGB")
    return turned.convert("RGB")


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Return a grey picture of wide numbers with 0 to 65535 as 0 to 255; Pillow itself cuts off what is over 255."""
    import numpy as np

    values = np.asarray(picture, dtype=np.float64)
    is_wide = picture.mode != "F" or values.max(initial=0) > 255
    return Image.fromarray(np.clip(values / 257 if is_wide else values, 0, 255).round().astype(np.uint8), "L")
