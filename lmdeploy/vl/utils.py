"""Pictures in and out of the forms users have them in."""

import base64
import io
from pathlib import Path

from PIL.Image import Image

from lmdeploy.vl.decoding import decode, upright
from lmdeploy.vl.fetching import fetch
from lmdeploy.vl.sources import ANYTHING, decoded_base64, load, url_scheme

__all__ = ["encode_image_base64", "load_image", "load_image_from_base64"]


def load_image(image_url: str | Image) -> Image:
    """Return a picture as RGB, upright, its transparent parts white, of an animation the first frame.

    Parameters
    ----------
    image_url
        An ``http`` or ``https`` URL (LMDEPLOY_FETCH_TIMEOUT seconds, default 10), a data URL, a path, or a picture.

    Raises
    ------
    ValueError
        If there is no such picture within reach.
    """
    return load(image_url, ANYTHING)


def encode_image_base64(image: str | Image) -> str:
    """Return the bytes of a picture's file, of a picture itself those of a PNG, as base64 text.

    Raises
    ------
    ValueError
        As :func:`load_image`.
    """
    if isinstance(image, Image):
        file = io.BytesIO()
        upright(image).save(file, "PNG")
        return base64.b64encode(file.getvalue()).decode()
    if url_scheme(image) in ("http", "https"):
        content = fetch(image, ANYTHING.fetch_rules)
        decode(content, ANYTHING.limits)
    elif image.startswith("data:"):
        return base64.b64encode(decoded_base64(image.partition(",")[2], ANYTHING.limits)).decode()
    else:
        load(image, ANYTHING)
        content = Path(image).expanduser().read_bytes()
    return base64.b64encode(content).decode()


def load_image_from_base64(image: bytes | str) -> Image:
    """Return the picture in a file's bytes as base64, without ``data:`` in front; as :func:`load_image`."""
    return decode(decoded_base64(image, ANYTHING.limits), ANYTHING.limits)
