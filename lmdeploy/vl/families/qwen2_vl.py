"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: images of any shape, whose tokens are on a grid of rows and columns."""

from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from lmdeploy.vl.families import qwen_video
from lmdeploy.vl.families.common import Options, VisionFamily, VisionPart

if TYPE_CHECKING:
    import torch

_TOKEN, _BEGIN, _END = "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"


def pixel_bounds(part: VisionPart, options: Options) -> dict[str, int]:
    """Return how few and how many pixels an image is scaled to: within what the model was made for.

    Raises
    ------
    ValueError
        If ``min_pixels`` or ``max_pixels`` is no number of pixels.
    """
    least, most = part.processor.size["shortest_edge"], part.processor.size["longest_edge"]
    bounds = {}
    for name, own in (("min_pixels", least), ("max_pixels", most)):
        wanted = options.get(name, own)
        if type(wanted) is not int or wanted < 1:
            raise ValueError(f"{name} must be a whole number >= 1, got {wanted!r}")
        bounds[name] = min(max(wanted, least), most)
    if bounds["min_pixels"] > bounds["max_pixels"]:
        raise ValueError(
            f"min_pixels must be at most max_pixels, got {bounds['min_pixels']} and {bounds['max_pixels']}"
        )
    return bounds


def grid(part: VisionPart, size: tuple[int, int], options: Options) -> tuple[int, int, int]:
    """Return frames, rows and columns of an image's tokens."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    width, height = size
    processor = part.processor
    unit = int(processor.patch_size * processor.merge_size)
    rows, columns = smart_resize(height, width, factor=unit, **pixel_bounds(part, options))
    return 1, rows // unit, columns // unit


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens; a template writes the marks around them."""
    _, rows, columns = grid(part, size, options)
    return _TOKEN * (rows * columns)


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows: the embedding, then what the model adds after its first layers, if anything."""
    inputs = part.processor(images=image, return_tensors="pt", **_sizes(part, options))
    seen = part.model.get_image_features(
        pixel_values=inputs["pixel_values"].to(part.model.dtype), image_grid_thw=inputs["image_grid_thw"]
    )
    return qwen_video.all_rows(seen)


def _sizes(part: VisionPart, options: Options) -> dict[str, Any]:
    bounds = pixel_bounds(part, options)
    return {"size": {"shortest_edge": bounds["min_pixels"], "longest_edge": bounds["max_pixels"]}}


FAMILY = VisionFamily(
    (
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
    ),
    _TOKEN,
    expansion,
    features,
    written=f"{_BEGIN}{_TOKEN}{_END}",
    words=(_BEGIN, _END),
    grid=grid,
    video=qwen_video.FORM,
)
