"""Gemma 3 and Gemma 4."""

from lmdeploy.vl.families.common import Options, VisionFamily, VisionPart

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


def gemma4_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens, one a square of pooled patches, between tags."""
    from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size

    processor = part.processor
    pool = processor.pooling_kernel_size
    height, width = get_aspect_ratio_preserving_size(
        size[1], size[0], processor.patch_size, processor.max_soft_tokens * pool**2, pool
    )
    count = (height // (pool * processor.patch_size)) * (width // (pool * processor.patch_size))
    return f"{_GEMMA4_BEGIN}{_GEMMA4_TOKEN * count}{_GEMMA4_END}"


GEMMA4 = VisionFamily(
    ("Gemma4ForConditionalGeneration",),
    _GEMMA4_TOKEN,
    gemma4_expansion,
    written=_GEMMA4_TOKEN,
    goes_first=False,
    words=(_GEMMA4_BEGIN, _GEMMA4_END),
)
