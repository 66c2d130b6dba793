"""Gemma 3 and Gemma 4."""

from typing import TYPE_CHECKING

from PIL.Image import Image

from lmdeploy.vl.families.common import Options, VideoForm, VisionFamily, VisionPart, image_rows
from lmdeploy.vl.videos import frames_in, times_of

if TYPE_CHECKING:
    import torch

# Gemma 3: one size of image, whose tokens see each other, between tags and empty lines.
_GEMMA3_TOKEN, _GEMMA3_BEGIN, _GEMMA3_END = "<image_soft_token>", "<start_of_image>", "<end_of_image>"


GEMMA3 = VisionFamily(
    ("Gemma3ForConditionalGeneration",),
    _GEMMA3_TOKEN,
    lambda part, size, options: (
        f"\n\n{_GEMMA3_BEGIN}{_GEMMA3_TOKEN * int(part.config.mm_tokens_per_image)}{_GEMMA3_END}\n\n"
    ),
    written=_GEMMA3_BEGIN,
    goes_first=False,
    words=(_GEMMA3_BEGIN, _GEMMA3_END),
    placeholder=_GEMMA3_BEGIN,
)


# Gemma 4: images keep their shape; of their tokens those of the large models see each other.
_GEMMA4_TOKEN, _GEMMA4_BEGIN, _GEMMA4_END = "<|image|>", "<|image>", "<image|>"
_VIDEO, _TOKENS_OF_FRAME = "<|video|>", 70


def gemma4_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens, one a square of pooled patches, between tags."""
    return _between_tags(part, size, _GEMMA4_TOKEN, part.processor.max_soft_tokens)


def _between_tags(part: VisionPart, size: tuple[int, int], token: str, most: int) -> str:
    from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size

    processor = part.processor
    pool = processor.pooling_kernel_size
    height, width = get_aspect_ratio_preserving_size(size[1], size[0], processor.patch_size, most * pool**2, pool)
    count = (height // (pool * processor.patch_size)) * (width // (pool * processor.patch_size))
    return f"{_GEMMA4_BEGIN}{token * count}{_GEMMA4_END}"


def _most_of_frame(part: VisionPart) -> int:
    return int(part.video.get("max_soft_tokens") or _TOKENS_OF_FRAME)


def frames_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return each frame's tokens, after its minute and second."""
    frame = _between_tags(part, size, _VIDEO, _most_of_frame(part))
    return " ".join(f"{int(time // 60):02d}:{int(time % 60):02d} {frame}" for time in times_of(options))


def frames_features(part: VisionPart, stacked: Image, options: Options) -> "torch.Tensor":
    """Return the rows of all frames."""
    frames = frames_in(stacked, len(times_of(options)))
    return image_rows(part, frames, options, max_soft_tokens=_most_of_frame(part))


GEMMA4 = VisionFamily(
    ("Gemma4ForConditionalGeneration",),
    _GEMMA4_TOKEN,
    gemma4_expansion,
    written=_GEMMA4_TOKEN,
    goes_first=False,
    words=(_GEMMA4_BEGIN, _GEMMA4_END),
    video=VideoForm(_VIDEO, frames_expansion, frames_features, written=_VIDEO, words=(_GEMMA4_BEGIN, _GEMMA4_END)),
)
