"""Mistral 3, Pixtral and LightOnOCR."""

import dataclasses
from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import Options, VisionFamily, VisionPart, image_rows

if TYPE_CHECKING:
    import torch


# Mistral Small 3.1 and 3.2: images of any shape, a row of the image at a time, with a delimiter after each.
_TOKEN, _BREAK, _END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"


def _side(part: VisionPart) -> int:
    """Return the pixels of a side of what one row of embeddings shows."""
    return int(part.config.vision_config.patch_size * getattr(part.config, "spatial_merge_size", 1))


def _fitted(part: VisionPart, size: tuple[int, int], side: int) -> tuple[int, int]:
    """Return columns and rows of squares with a side that show an image shrunk to the longest that the model takes."""
    width, height = size
    ratio = max(width, height) / part.processor.size["longest_edge"]
    if ratio > 1:
        width, height = int(width / ratio), int(height / ratio)
    return -(-width // side), -(-height // side)


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of each row of the image."""
    columns, rows = _fitted(part, size, _side(part))
    return _BREAK.join([_TOKEN * columns] * rows) + _END


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows of embeddings, row by row of the image."""
    # `transformers` fails where there is one row in all.
    count = expansion(part, image.size, options).count(_TOKEN)
    return image_rows(part, [image] * (2 if count == 1 else 1), options, patch_size=_side(part))[:count]


MISTRAL3 = VisionFamily(
    ("Mistral3ForConditionalGeneration",),
    _TOKEN,
    expansion,
    features,
    written=_TOKEN,
    goes_first=False,
    words=(_BREAK, _END),
)


# Pixtral: LLaVA's architecture with a tower for images of any shape, written as Mistral Small 3 writes them.
PIXTRAL = dataclasses.replace(MISTRAL3, architectures=("LlavaForConditionalGeneration",), tower="pixtral")


# LightOnOCR: the same tower, without delimiters; sides are multiples of the image processor's patches.
_PAD = "<|image_pad|>"


def lighton_ocr_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    patch = part.processor.patch_size["height"]
    columns, rows = (count * patch // _side(part) for count in _fitted(part, size, patch))
    return _PAD * int(columns * rows)


LIGHTON_OCR = VisionFamily(
    ("LightOnOcrForConditionalGeneration",), _PAD, lighton_ocr_expansion, written=_PAD, goes_first=False
)
