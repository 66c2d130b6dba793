"""Llama 4: an image in tiles of the best canvas, line by line, then the whole in one tile."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import (
    Options,
    VisionFamily,
    VisionPart,
    normalized,
    resized,
    saved_processor,
    tiles_of,
)

if TYPE_CHECKING:
    import torch

_TOKEN, _PLACEHOLDER = "<|patch|>", "<|image|>"
_BEGIN, _END = "<|image_start|>", "<|image_end|>"
_COLUMN_END, _ROW_END = "<|tile_x_separator|>", "<|tile_y_separator|>"


@dataclass(frozen=True)
class Tiles:
    """How images are cut; the processor of ``transformers`` needs torchvision."""

    side: int  # pixels of a tile's side
    max_tiles: int  # most tiles of an image, without the whole
    fills_canvas: bool  # the largest canvas is taken, not the smallest that holds the image
    # Of each channel's values between 0 and 1
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of tiles for an image of this size (width, height)."""
        scales = {canvas: self._scale(size, canvas) for canvas in self._canvases()}
        enlarging = [scale for scale in scales.values() if scale >= 1]
        is_largest = self.fills_canvas or not enlarging
        scale = max(enlarging or scales.values()) if is_largest else min(enlarging)
        return min((canvas for canvas in scales if scales[canvas] == scale), key=lambda canvas: canvas[0] * canvas[1])

    def pixels(self, image: Image) -> "torch.Tensor":
        """Return the tiles ``[tiles, 3, side, side]``."""
        import numpy as np
        import torch

        whole = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
        rows, columns = self.grid(image.size)
        side = self.side
        width, height = self._fitted(image.size, columns * side, rows * side)
        fitted = resized(whole, height, width)
        canvas = torch.zeros(3, rows * side, columns * side, dtype=torch.uint8)
        canvas[:, : fitted.shape[2], : fitted.shape[3]] = fitted[0]
        tiles = tiles_of(canvas, side)
        if rows * columns > 1:
            tiles = torch.cat([tiles, resized(whole, side, side)])
        return normalized(tiles, self.mean, self.std)

    def _canvases(self) -> list[tuple[int, int]]:
        """Return rows and columns of all canvases; of two that fit an image alike the first is taken."""
        by_ratio: dict[float, list[tuple[int, int]]] = {}
        for count in range(self.max_tiles, 0, -1):
            for rows in range(1, count + 1):
                if count % rows == 0:
                    by_ratio.setdefault(rows * rows / count, []).append((rows, count // rows))
        return [canvas for canvases in by_ratio.values() for canvas in canvases]

    def _scale(self, size: tuple[int, int], canvas: tuple[int, int]) -> float:
        import numpy as np

        # In 32 bits, as in training: which canvases fit alike depends on it.
        scales = [np.float32(tiles * self.side) / np.float32(length)
                  for length, tiles in zip(size, reversed(canvas), strict=True)]  # fmt: skip
        return float(min(scales))

    def _fitted(self, size: tuple[int, int], width: int, height: int) -> tuple[int, int]:
        """Return the size that an image is scaled to: within the canvas, and enlarged at most to a tile."""
        if not self.fills_canvas:
            width, height = (min(max(px, self.side), bound) for px, bound in zip(size, (width, height), strict=True))
        across, down = width / size[0], height / size[1]
        if across < down:
            return width, max(1, min(math.floor(size[1] * across), height))
        return max(1, min(math.floor(size[0] * down), width)), height


def processor(checkpoint: Path) -> Tiles:
    """Return the processor, which cuts images into tiles, as the checkpoint's files say."""
    settings = saved_processor(checkpoint)
    return Tiles(
        int(settings["size"]["height"]),
        int(settings.get("max_patches", 16)),
        bool(settings.get("resize_to_max_canvas", False)),
        tuple(settings.get("image_mean", (0.5,) * 3)),
        tuple(settings.get("image_std", (0.5,) * 3)),
    )


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of each line of tiles, then those of the whole."""
    vision = part.config.vision_config
    tile = _TOKEN * int((vision.image_size // vision.patch_size) ** 2 * vision.pixel_shuffle_ratio**2 + 0.5)
    rows, columns = part.processor.grid(size)
    lines = (_COLUMN_END.join([tile] * columns) + _ROW_END) * rows if rows * columns > 1 else ""
    return f"{_BEGIN}{lines}{_PLACEHOLDER}{tile}{_END}"


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows of all tiles."""
    seen = part.model.get_image_features(pixel_values=part.processor.pixels(image).to(part.model.dtype))
    rows: torch.Tensor = part.model.multi_modal_projector(seen.last_hidden_state.flatten(0, -2))
    return rows


FAMILY = VisionFamily(
    ("Llama4ForConditionalGeneration",),
    _TOKEN,
    expansion,
    features,
    written=_PLACEHOLDER,
    goes_first=False,
    words=(_PLACEHOLDER, _BEGIN, _END, _COLUMN_END, _ROW_END),
    placeholder=_PLACEHOLDER,
    processor=processor,
)
