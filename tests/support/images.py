"""Images and their files, good and bad."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image


def make_image(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return an image of noise in which large areas differ too."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize((width, height))
    noise = random.integers(-30, 30, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(coarse, dtype=int) + noise, 0, 255).astype(np.uint8))


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return an image's file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def data_url(content: bytes | Image.Image, kind: str = "image/png") -> str:
    """Return a file, or an image's as PNG, as a data URL."""
    raw = file_of(content) if isinstance(content, Image.Image) else content
    return f"data:{kind};base64,{base64.b64encode(raw).decode()}"
