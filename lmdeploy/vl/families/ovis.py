"""Ovis 2: the whole image, then tiles, between tags whose embeddings come from the tower too."""

import re
from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import Options, VisionFamily, VisionPart, image_rows

if TYPE_CHECKING:
    import torch

_TOKEN, _PLACEHOLDER = "<IMG_ATOM>", "<image>"
_TAGS = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of the whole, then those of tiles line by line, with tags between."""
    from transformers.models.ovis2 import image_processing_pil_ovis2 as ovis2

    vision, processor = part.config.vision_config, part.processor
    view = _TOKEN * int(-(-(vision.image_size // vision.patch_size) // vision.hidden_stride)) ** 2
    start, grid, column, row, end = _TAGS
    columns = rows = 1
    if processor.crop_to_patches and processor.max_patches > 1:
        side = processor.size["height"]
        if processor.use_covering_area_grid:
            columns, rows = ovis2.get_min_tile_covering_grid((size[1], size[0]), side, processor.max_patches)
        else:
            bounds = processor.min_patches, processor.max_patches
            columns, rows = ovis2.get_optimal_tiled_canvas((size[1], size[0]), (side, processor.size["width"]), *bounds)
    tiles = row.join([column.join([view] * columns)] * rows) if rows * columns > 1 else ""
    return start + view + grid + tiles + end


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows of views and tags, as their tokens are placed."""
    import torch

    words = re.findall("<.*?>", expansion(part, image.size, options))
    table = part.model.model.visual_embeddings_table.weight[-len(_TAGS) :]
    rows = table[torch.tensor([_TAGS.index(word) if word in _TAGS else 0 for word in words])]
    rows[torch.tensor([word == _TOKEN for word in words])] = image_rows(part, image, options)
    return rows


OVIS2 = VisionFamily(
    ("Ovis2ForConditionalGeneration",),
    _TOKEN,
    expansion,
    features,
    written=f"{_PLACEHOLDER}\n",
    words=_TAGS,
    placeholder=_PLACEHOLDER,
    seen_words=_TAGS,
)
