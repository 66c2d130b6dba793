"""Loading and encoding of images for users."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path

from PIL.Image import Image

from lmdeploy.vl.decoding import decode, upright
from lmdeploy.vl.fetching import fetch
from lmdeploy.vl.sources import ANYTHING, data_of, decoded_base64, load, load_frames, url_scheme
from lmdeploy.vl.videos import DEFAULT_FRAMES, DEFAULT_RATE, Sampling, Video

__all__ = ["encode_image_base64", "load_image", "load_image_from_base64", "load_video"]


def load_image(image_url: str | Image) -> Image:
    """Return an image as RGB, upright, its transparent parts white, of an animation the first frame.

    Parameters
    ----------
    image_url
        An ``http`` or ``https`` URL (LMDEPLOY_FETCH_TIMEOUT seconds, default 10), a data URL, a path, or an image.

    Raises
    ------
    ValueError
        If there is no such image within reach.
    """
    return load(image_url, ANYTHING)


def load_video(
    video: str | Sequence[str | Image], num_frames: int = DEFAULT_FRAMES, fps: float = DEFAULT_RATE
) -> Video:
    """Return some frames of a video, for prompts: ``(text, load_video(...))``.

    Parameters
    ----------
    video
        URL, data URL or path of an animated GIF, WebP or PNG, or of an MP4 or another video (extra
        ``video``); or frames, each as :func:`load_image` takes it.
    num_frames
        At most this many, spread evenly.
    fps
        Frames a second, of what comes as frames alone; files have their own times.

    Raises
    ------
    ValueError
        If there is no such video within reach, or it needs PyAV, which is not there.
    """
    return load_frames(video, Sampling(num_frames, fps), ANYTHING)


def encode_image_base64(image: str | Image) -> str:
    """Return the bytes of an image's file, of an image itself those of a PNG, as base64 text.

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
    elif url_scheme(image) == "data":
        content = data_of(image, ANYTHING.limits, ("image",))
    else:
        load(image, ANYTHING)
        content = Path(image).expanduser().read_bytes()
    return base64.b64encode(content).decode()


def load_image_from_base64(image: bytes | str) -> Image:
    """Return the image in a file's bytes as base64, without ``data:`` in front; as :func:`load_image`."""
    return decode(decoded_base64(image, ANYTHING.limits), ANYTHING.limits)
