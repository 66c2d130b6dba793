"""How Llama 4 cuts images, as `transformers` does it by way of torchvision: bilinear on bytes by ``torch``."""

from fractions import Fraction
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.support.tiny_vision_models import IMAGE_SIDE as SIDE

MOST = 6


def best_canvas(width: int, height: int) -> tuple[int, int]:
    """Return rows and columns of the smallest canvas that holds the image, else of that which shrinks it least."""
    fits = {
        (rows, columns): min(Fraction(columns * SIDE, width), Fraction(rows * SIDE, height))
        for rows in range(1, MOST + 1)
        for columns in range(1, MOST // rows + 1)
    }
    holding = [scale for scale in fits.values() if scale >= 1]
    wanted = min(holding) if holding else max(fits.values())
    return min((rows * columns, rows, columns) for (rows, columns), scale in fits.items() if scale == wanted)[1:]


def _resized(pixels: torch.Tensor, width: int, height: int) -> torch.Tensor:
    return torch.nn.functional.interpolate(pixels, (height, width), mode="bilinear", antialias=True)


def llama4_inputs(processor: Any, config: Any, image: Image.Image) -> dict[str, Any]:
    """Return the pixels of tiles and whole, between -1 and 1."""
    pixels = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None]
    rows, columns = best_canvas(*image.size)
    width, height = (min(max(own, SIDE), most * SIDE) for own, most in zip(image.size, (columns, rows), strict=True))
    scale = min(Fraction(width, image.width), Fraction(height, image.height))
    small = _resized(pixels, int(image.width * scale), int(image.height * scale))
    canvas = torch.zeros(3, rows * SIDE, columns * SIDE, dtype=torch.uint8)
    canvas[:, : small.shape[2], : small.shape[3]] = small[0]
    tiles = canvas.reshape(3, rows, SIDE, columns, SIDE).permute(1, 3, 0, 2, 4).flatten(0, 1)
    if rows * columns > 1:
        tiles = torch.cat([tiles, _resized(pixels, SIDE, SIDE)])
    return {"pixel_values": tiles.float() / 127.5 - 1}
