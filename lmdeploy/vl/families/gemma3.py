"""Gemma 3: one size of image, whose tokens see each other, between marks and empty lines."""

from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import Options, VisionFamily, VisionPart

if TYPE_CHECKING:
    import torch

_TOKEN, _BEGIN, _END = "<image_soft_token>", "<start_of_image>", "<end_of_image>"


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens, between marks."""
    return f"\n\n{_BEGIN}{_TOKEN * int(part.config.mm_tokens_per_image)}{_END}\n\n"


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows."""
    pixels = part.processor(images=image, return_tensors="pt")["pixel_values"]
    rows: torch.Tensor = part.model.get_image_features(pixel_values=pixels.to(part.model.dtype)).pooler_output[0]
    return rows


FAMILY = VisionFamily(
    ("Gemma3ForConditionalGeneration",),
    _TOKEN,
    expansion,
    features,
    written=_BEGIN,
    goes_first=False,
    words=(_BEGIN, _END),
    mark=_BEGIN,
)
