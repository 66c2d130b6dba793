"""InternVL 2.5, 3 and 3.5 as converted for ``transformers``: tiles of one size, then the whole image."""

from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from lmdeploy.vl.families.common import Options, VideoForm, VisionFamily, VisionPart
from lmdeploy.vl.videos import frames_in, times_of

if TYPE_CHECKING:
    import torch

_TOKEN, _BEGIN, _END = "<IMG_CONTEXT>", "<img>", "</img>"
_VIDEO = "<video>"
_TILES_OF_DETAIL = {"low": 6, "medium": 12, "high": 24}


def tiling(part: VisionPart, options: Options) -> dict[str, Any]:
    """Return how an image is cut: at most as the model was made for.

    Raises
    ------
    ValueError
        If ``max_dynamic_patch`` is no number of tiles.
    """
    most = part.processor.max_patches
    wanted = options.get("max_dynamic_patch", _TILES_OF_DETAIL.get(str(options.get("detail")), most))
    if type(wanted) is not int or wanted < 1:
        raise ValueError(f"max_dynamic_patch must be a whole number >= 1, got {wanted!r}")
    return {"crop_to_patches": True, "max_patches": min(wanted, most)}


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of all tiles, between marks."""
    width, height = size
    tiles: int = part.processor.get_number_of_image_patches(height, width, tiling(part, options))
    return _BEGIN + _TOKEN * (tiles * int(part.config.image_seq_length)) + _END


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows of all tiles."""
    pixels = part.processor(images=image, return_tensors="pt", **tiling(part, options))["pixel_values"]
    rows: torch.Tensor = part.model.get_image_features(pixel_values=pixels.to(part.model.dtype)).pooler_output
    return rows.flatten(0, 1)


def video_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of each frame, between delimiters and after its number."""
    frame = _BEGIN + _TOKEN * int(part.config.image_seq_length) + _END
    return "\n".join(f"Frame{number}: {frame}" for number in range(1, len(times_of(options)) + 1))


def video_features(part: VisionPart, stacked: Image, options: Options) -> "torch.Tensor":
    """Return the rows of all frames, each of which is a tile."""
    frames = frames_in(stacked, len(times_of(options)))
    pixels = part.processor(images=frames, return_tensors="pt", crop_to_patches=False)["pixel_values"]
    rows: torch.Tensor = part.model.get_image_features(pixel_values=pixels.to(part.model.dtype)).pooler_output
    return rows.flatten(0, 1)


FAMILY = VisionFamily(
    ("InternVLForConditionalGeneration",),
    _TOKEN,
    expansion,
    features,
    words=(_BEGIN, _END),
    video=VideoForm(_TOKEN, video_expansion, video_features, written=f"{_VIDEO}\n", mark=_VIDEO, words=(_BEGIN, _END)),
)
