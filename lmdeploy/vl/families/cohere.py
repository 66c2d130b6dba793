"""Aya Vision and Command A Vision: tiles, then the whole image."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import (
    Options,
    VisionFamily,
    VisionPart,
    all_rows,
    image_rows,
    normalized,
    resized,
    saved_processor,
    tiles_of,
)
from lmdeploy.vl.families.llama4 import Tiles

if TYPE_CHECKING:
    import torch

_TOKEN, _BEGIN, _END = "<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>"
_PLACEHOLDER, _BREAK = "<image>", "<|IMG_LINE_BREAK|>"


def _view(part: VisionPart) -> str:
    """Return the tokens of a tile, or of the whole."""
    vision = part.config.vision_config
    return _TOKEN * int(vision.image_size // (vision.patch_size * part.config.downsample_factor)) ** 2


# Aya Vision: each view is after its name.
def aya_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of each view after its name, between tags."""
    tile = _view(part)
    views = part.processor.get_number_of_image_patches(size[1], size[0], {"crop_to_patches": True})
    names = [*(f"TILE_{number}" for number in range(1, views)), "TILE_GLOBAL"]
    return _BEGIN + "".join(name + tile for name in names) + _END


AYA_VISION = VisionFamily(
    ("AyaVisionForConditionalGeneration",),
    _TOKEN,
    aya_expansion,
    lambda part, image, options: image_rows(part, image, options, crop_to_patches=True),
    written=_PLACEHOLDER,
    words=(_BEGIN, _END),
    placeholder=_PLACEHOLDER,
)


# Command A Vision: Llama 4's tiles, whose canvas an image fills; a delimiter after each view.
class Stretched(Tiles):
    """Tiles of images that fill their canvas; the processor of ``transformers`` needs torchvision."""

    def pixels(self, image: Image) -> "torch.Tensor":
        """Return the views ``[views, 3, side, side]``."""
        import numpy as np
        import torch

        whole = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
        rows, columns = self.grid(image.size)
        views = tiles_of(resized(whole, rows * self.side, columns * self.side, "bicubic")[0], self.side)
        if rows * columns > 1:
            views = torch.cat([views, resized(whole, self.side, self.side, "bicubic")])
        return normalized(views, self.mean, self.std)


def processor(checkpoint: Path) -> Stretched:
    """Return the processor, as the checkpoint's files say."""
    from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

    settings = saved_processor(checkpoint)
    return Stretched(
        int(settings["size"]["height"]),
        int(settings.get("max_patches", 12)) if settings.get("crop_to_patches", True) else 1,
        False,
        tuple(settings.get("image_mean", OPENAI_CLIP_MEAN)),
        tuple(settings.get("image_std", OPENAI_CLIP_STD)),
    )


def command_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of each view, between tags."""
    tiler: Stretched = part.processor
    tiles = math.prod(tiler.grid(size))
    return _BEGIN + (_view(part) + _BREAK) * (tiles + (tiles > 1)) + _END


def command_features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows of all views."""
    pixels = part.processor.pixels(image).to(part.model.dtype)
    return all_rows(part.model.model.get_image_features(pixel_values=pixels))


COMMAND_A_VISION = VisionFamily(
    ("Cohere2VisionForConditionalGeneration",),
    _TOKEN,
    command_expansion,
    command_features,
    written=_TOKEN,
    words=(_BEGIN, _END, _BREAK),
    processor=processor,
)
