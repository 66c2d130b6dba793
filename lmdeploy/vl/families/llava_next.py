"""LLaVA 1.6 (NeXT): a small view of the whole image, then tiles of the canvas that fits it best, a newline a row."""

from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import Options, VisionFamily, VisionPart
from lmdeploy.vl.families.llava import rows_of_tower

if TYPE_CHECKING:
    import torch

_TOKEN = "<image>"


def unpadded(part: VisionPart, size: tuple[int, int]) -> tuple[int, int]:
    """Return rows and columns of patches that an image has of the canvas that fits it best."""
    from transformers.image_processing_utils import select_best_resolution

    width, height = size
    tile = int(part.config.vision_config.image_size)
    patches = tile // int(part.config.vision_config.patch_size)
    canvas_height, canvas_width = select_best_resolution((height, width), part.config.image_grid_pinpoints)
    rows, columns = patches * (int(canvas_height) // tile), patches * (int(canvas_width) // tile)
    # The image fills the canvas one way; what is left the other way is padding, the same on both sides.
    if width / height > columns / rows:
        rows -= 2 * ((rows - int(round(height * (columns / width), 7))) // 2)
    else:
        columns -= 2 * ((columns - int(round(width * (rows / height), 7))) // 2)
    return rows, columns


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens: of the whole image, and of the canvas less its padding, with a newline each row."""
    rows, columns = unpadded(part, size)
    return _TOKEN * (rows_of_tower(part) + rows * columns + rows)


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows, newlines included."""
    inputs = part.processor(images=image, return_tensors="pt")
    pixels = inputs["pixel_values"].to(part.model.dtype)
    rows: torch.Tensor = part.model.get_image_features(
        pixel_values=pixels, image_sizes=inputs["image_sizes"]
    ).pooler_output[0]
    return rows


FAMILY = VisionFamily(("LlavaNextForConditionalGeneration",), _TOKEN, expansion, features)
