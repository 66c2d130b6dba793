"""Gemma 4: images keep their shape; of their tokens those of the large models see each other."""

from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import Options, VisionFamily, VisionPart, rows_of

if TYPE_CHECKING:
    import torch

_TOKEN, _BEGIN, _END = "<|image|>", "<|image>", "<image|>"


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens, one a square of pooled patches, between marks."""
    from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size

    processor = part.processor
    pool = processor.pooling_kernel_size
    height, width = get_aspect_ratio_preserving_size(
        size[1], size[0], processor.patch_size, processor.max_soft_tokens * pool**2, pool
    )
    count = (height // (pool * processor.patch_size)) * (width // (pool * processor.patch_size))
    return f"{_BEGIN}{_TOKEN * count}{_END}"


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows."""
    inputs = part.processor(images=image, return_tensors="pt")
    pixels = inputs["pixel_values"].to(part.model.dtype)
    seen = part.model.get_image_features(pixel_values=pixels, image_position_ids=inputs["image_position_ids"])
    return rows_of(seen.pooler_output)


FAMILY = VisionFamily(
    ("Gemma4ForConditionalGeneration",),
    _TOKEN,
    expansion,
    features,
    written=_TOKEN,
    goes_first=False,
    words=(_BEGIN, _END),
)
