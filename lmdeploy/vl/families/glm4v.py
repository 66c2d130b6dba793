"""GLM-4.1V: as Qwen2-VL, with marks and bounds of its own."""

import dataclasses

from lmdeploy.vl.families import qwen2_vl, qwen_video
from lmdeploy.vl.families.common import Options, VisionPart
from lmdeploy.vl.videos import times_of

_TOKEN, _BEGIN, _END = "<|image|>", "<|begin_of_image|>", "<|end_of_image|>"
_VIDEO = "<|video|>"


def grid(part: VisionPart, size: tuple[int, int], options: Options) -> tuple[int, int, int]:
    """Return frames, rows and columns of an image's tokens; the bounds are those of its frames together."""
    from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize

    width, height = size
    processor = part.processor
    unit, frames = int(processor.patch_size * processor.merge_size), int(processor.temporal_patch_size)
    bounds = qwen2_vl.pixel_bounds(part, options)
    rows, columns = smart_resize(frames, height, width, temporal_factor=frames, factor=unit, **bounds)
    return 1, rows // unit, columns // unit


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens; a template writes the marks around them."""
    _, rows, columns = grid(part, size, options)
    return _TOKEN * (rows * columns)


def video_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of every two frames, between marks, each before the second of the first."""
    _, rows, columns = qwen_video.grid(part, size, options)
    run = _BEGIN + _TOKEN * (rows * columns) + _END
    return "".join(f"{run}{int(time)}" for time in times_of(options)[::2])


FAMILY = dataclasses.replace(
    qwen2_vl.FAMILY,
    architectures=(
        "Glm4vForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "Glm46VForConditionalGeneration",
    ),
    token=_TOKEN,
    expansion=expansion,
    written=f"{_BEGIN}{_TOKEN}{_END}",
    goes_first=False,
    words=(_BEGIN, _END),
    grid=grid,
    video=dataclasses.replace(
        qwen_video.FORM,
        token=_TOKEN,
        expansion=video_expansion,
        written=f"<|begin_of_video|>{_VIDEO}<|end_of_video|>",
        mark=_VIDEO,
        words=(_BEGIN, _END, "<|begin_of_video|>", "<|end_of_video|>"),
    ),
)
