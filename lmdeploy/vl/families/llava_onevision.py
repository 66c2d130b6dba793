"""LLaVA-OneVision: as LLaVA 1.6 with a bound on the rows of one picture, and a single view of each of several."""

import math
from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import Options, VisionFamily, VisionPart
from lmdeploy.vl.families.llava import rows_of_tower
from lmdeploy.vl.families.llava_next import unpadded

if TYPE_CHECKING:
    import torch

_TOKEN = "<image>"
_SHRUNK_ABOVE = 1.1  # times the side that the most tiles have


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens: of the whole picture, then either one newline or those of the canvas, shrunk if too many."""
    whole = rows_of_tower(part)
    if options.get("several"):
        return _TOKEN * (whole + 1)
    rows, columns = unpadded(part, size)
    most = int(part.config.vision_aspect_ratio.rpartition("_")[2])  # anyres_max_9
    patches = part.config.vision_config.image_size // part.config.vision_config.patch_size
    ratio = math.sqrt(rows * columns / (most * patches**2))
    if ratio > _SHRUNK_ABOVE:
        rows, columns = int(rows // ratio), int(columns // ratio)
    return _TOKEN * (whole + rows * columns + rows)


def features(part: VisionPart, picture: Image, options: Options) -> "torch.Tensor":
    """Return the rows, newlines included."""
    count = 2 if options.get("several") else 1  # the processor makes single views of two or more
    inputs = part.processor(images=[[picture] * count], return_tensors="pt")
    rows: torch.Tensor = part.model.get_image_features(
        pixel_values=inputs["pixel_values"][:1].to(part.model.dtype),
        image_sizes=inputs["image_sizes"][:1],
        batch_num_images=inputs["batch_num_images"],
    ).pooler_output[0]
    return rows


FAMILY = VisionFamily(
    ("LlavaOnevisionForConditionalGeneration",), _TOKEN, expansion, features, written=f"{_TOKEN}\n", minds_others=True
)
