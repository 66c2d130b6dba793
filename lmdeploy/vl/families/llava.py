"""LLaVA 1.5 and what was built like it: one size of image, one row a patch."""

from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import Options, VisionFamily, VisionPart

if TYPE_CHECKING:
    import torch

_TOKEN = "<image>"


def rows_of_tower(part: VisionPart) -> int:
    """Return how many rows a tower for one size gives."""
    vision = part.config.vision_config
    patches = (vision.image_size // vision.patch_size) ** 2
    has_summary = vision.model_type == "clip_vision_model"
    return int(patches + has_summary - (part.config.vision_feature_select_strategy == "default"))


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens."""
    return _TOKEN * rows_of_tower(part)


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows."""
    pixels = part.processor(images=image, return_tensors="pt")["pixel_values"]
    rows: torch.Tensor = part.model.get_image_features(pixel_values=pixels.to(part.model.dtype)).pooler_output[0]
    return rows


FAMILY = VisionFamily(("LlavaForConditionalGeneration",), _TOKEN, expansion, features)
