"""DeepSeek-VL as converted for ``transformers``: one size of image, and a larger one for the 7B model."""

from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import Options, VisionFamily, VisionPart

if TYPE_CHECKING:
    import torch

_TOKEN = "<image_placeholder>"


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens."""
    vision = part.config.vision_config
    return _TOKEN * int(vision.image_size // vision.patch_size) ** 2


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows."""
    pixels = part.processor(images=image, return_tensors="pt")
    sizes = {name: values.to(part.model.dtype) for name, values in pixels.items()}
    rows: torch.Tensor = part.model.model.get_image_features(**sizes).pooler_output[0]
    return rows


FAMILY = VisionFamily(
    ("DeepseekVLForConditionalGeneration", "DeepseekVLHybridForConditionalGeneration"),
    _TOKEN,
    expansion,
    features,
    written=_TOKEN,
)
