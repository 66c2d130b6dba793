"""LFM2-VL: an image of any shape, or, if it is large, tiles line by line after tags, then the whole."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import (
    Options,
    VisionFamily,
    VisionPart,
    all_rows,
    normalized,
    resized,
    saved_processor,
    tiles_of,
)

if TYPE_CHECKING:
    import torch

_TOKEN, _BEGIN, _END, _THUMBNAIL = "<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"
_MAX_TILES = 10  # that there are tags for
_MODES = {2: "bilinear", 3: "bicubic"}  # of Pillow's numbers


def _tag(row: int, column: int) -> str:
    return f"<|img_row_{row}_col_{column}|>"


@dataclass(frozen=True)
class Tiler:
    """How images are cut; the processor of ``transformers`` needs torchvision."""

    patch: int  # pixels of a patch's side
    unit: int  # pixels of the side of what one row shows
    tile: int  # pixels of a tile's side
    tiles: tuple[int, int]  # fewest and most of an image; both 1 where no image is cut
    tokens: tuple[int, int]  # fewest and most rows of a whole image
    tolerance: float  # how many times the most rows an image may have before it is cut
    has_whole: bool  # tiles are followed by the whole
    mode: str
    # Of each channel's values between 0 and 1
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of tiles for an image of this size (width, height)."""
        from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

        width, height = (max(self.patch, round(side / self.unit) * self.unit) for side in size)
        if self.tiles == (1, 1) or width * height <= self.tokens[1] * self.unit**2 * self.tolerance:
            return 1, 1
        columns, rows = get_optimal_tiled_canvas((size[1], size[0]), (self.tile, self.tile), *self.tiles)
        return rows, columns

    def whole(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of the tokens of a whole image: about its shape, within the bounds."""
        columns, rows = (max(1, round(side / self.unit)) for side in size)
        fewest, most = self.tokens
        if rows * columns > most:
            shrinks = math.sqrt(size[0] * size[1] / (most * self.unit**2))
            columns, rows = (max(1, math.floor(side / shrinks / self.unit)) for side in size)
        elif rows * columns < fewest:
            grows = math.sqrt(fewest * self.unit**2 / (size[0] * size[1]))
            columns, rows = (math.ceil(side * grows / self.unit) for side in size)
        return rows, columns

    def views(self, image: Image) -> "Iterator[torch.Tensor]":
        """Yield normalized views of one size each ``[views, 3, height, width]``: all tiles, the whole."""
        import numpy as np
        import torch

        def pixels(height: int, width: int) -> torch.Tensor:
            return normalized(resized(whole, height, width, self.mode), self.mean, self.std)

        whole = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
        rows, columns = self.grid(image.size)
        if rows * columns > 1:
            yield tiles_of(pixels(rows * self.tile, columns * self.tile)[0], self.tile)
        if rows * columns == 1 or self.has_whole:
            height, width = self.whole(image.size)
            yield pixels(height * self.unit, width * self.unit)


def processor(checkpoint: Path) -> Tiler:
    """Return the processor, as the checkpoint's files say."""
    settings = saved_processor(checkpoint)
    patch, cuts = int(settings.get("encoder_patch_size", 16)), settings.get("do_image_splitting", True)
    return Tiler(
        patch,
        patch * int(settings.get("downsample_factor", 2)),
        int(settings.get("tile_size", 512)),
        (int(settings.get("min_tiles", 2)), int(settings.get("max_tiles", _MAX_TILES))) if cuts else (1, 1),
        (int(settings.get("min_image_tokens", 64)), int(settings.get("max_image_tokens", 256))),
        float(settings.get("max_pixels_tolerance", 2.0)),
        bool(settings.get("use_thumbnail", True)),
        _MODES[settings.get("resample", 2)],
        tuple(settings.get("image_mean", (0.5,) * 3)),
        tuple(settings.get("image_std", (0.5,) * 3)),
    )


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of each tile after its tag, then those of the whole."""
    tiler: Tiler = part.processor
    rows, columns = tiler.grid(size)
    tile, whole = _TOKEN * (tiler.tile // tiler.unit) ** 2, _TOKEN * math.prod(tiler.whole(size))
    if rows * columns == 1:
        return _BEGIN + whole + _END
    tiles = "".join(_tag(row + 1, column + 1) + tile for row in range(rows) for column in range(columns))
    return _BEGIN + tiles + (_THUMBNAIL + whole if tiler.has_whole else "") + _END


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows of all views."""
    import torch

    side, rows = part.processor.patch, []
    for views in part.processor.views(image):
        count, _, height, width = views.shape
        cut = views.reshape(count, 3, height // side, side, width // side, side).permute(0, 2, 4, 3, 5, 1)
        patches = cut.flatten(3).flatten(1, 2).to(part.model.dtype)
        shapes = torch.tensor([cut.shape[1:3]] * count)
        mask = torch.ones(patches.shape[:2], dtype=torch.int32)
        rows.append(all_rows(part.model.model.get_image_features(patches, shapes, mask)))
    return torch.cat(rows)


LFM2_VL = VisionFamily(
    ("Lfm2VlForConditionalGeneration",),
    _TOKEN,
    expansion,
    features,
    written=_TOKEN,
    words=(
        _BEGIN,
        _END,
        _THUMBNAIL,
        *(_tag(row, column) for row in range(1, _MAX_TILES + 1) for column in range(1, _MAX_TILES // row + 1)),
    ),
    processor=processor,
)
