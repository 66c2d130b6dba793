"""LLaVA-OneVision: as LLaVA 1.6 with a bound on the rows of one image, and a single view of each of several."""

import math
from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import Options, VideoForm, VisionFamily, VisionPart, rows_of
from lmdeploy.vl.families.llava import rows_of_tower
from lmdeploy.vl.families.llava_next import unpadded
from lmdeploy.vl.videos import frames_in, times_of

if TYPE_CHECKING:
    import torch

_TOKEN, _VIDEO = "<image>", "<video>"
_SHRUNK_ABOVE = 1.1  # times the side that the most tiles have


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens: of the whole image, then either one newline or those of the canvas, shrunk if too many."""
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


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows, newlines included."""
    count = 2 if options.get("several") else 1  # the processor makes single views of two or more
    inputs = part.processor(images=[[image] * count], return_tensors="pt")
    rows: torch.Tensor = part.model.get_image_features(
        pixel_values=inputs["pixel_values"][:1].to(part.model.dtype),
        image_sizes=inputs["image_sizes"][:1],
        batch_num_images=inputs["batch_num_images"],
    ).pooler_output[0]
    return rows


def video_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of all frames, a quarter of a view's each, and of one newline."""
    vision = part.config.vision_config
    side: int = math.ceil(vision.image_size // vision.patch_size / 2)
    return _VIDEO * (len(times_of(options)) * side**2 + 1)


def video_features(part: VisionPart, stacked: Image, options: Options) -> "torch.Tensor":
    """Return the rows, the newline included."""
    import torch

    side = part.config.vision_config.image_size
    frames = frames_in(stacked, len(times_of(options)))
    seen = [part.processor(images=[[one]], image_grid_pinpoints=[[side, side]], return_tensors="pt") for one in frames]
    views = [one["pixel_values"][0, :1] for one in seen]  # the whole comes first
    # By place: the name differs between versions of transformers.
    pooled = part.model.get_video_features(torch.stack(views, dim=1).to(part.model.dtype)).pooler_output
    return rows_of(pooled)


FAMILY = VisionFamily(
    ("LlavaOnevisionForConditionalGeneration",),
    _TOKEN,
    expansion,
    features,
    minds_others=True,
    video=VideoForm(_VIDEO, video_expansion, video_features, written=f"{_VIDEO}\n"),
)
