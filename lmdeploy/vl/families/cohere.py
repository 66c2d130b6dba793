"""Aya Vision: tiles, each after its number, then the whole image."""

from lmdeploy.vl.families.common import Options, VisionFamily, VisionPart, image_rows

_TOKEN, _BEGIN, _END, _PLACEHOLDER = "<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<image>"


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of each tile after its name, between tags."""
    vision = part.config.vision_config
    tile = _TOKEN * int(vision.image_size // (vision.patch_size * part.config.downsample_factor)) ** 2
    views = part.processor.get_number_of_image_patches(size[1], size[0], {"crop_to_patches": True})
    names = [*(f"TILE_{number}" for number in range(1, views)), "TILE_GLOBAL"]
    return _BEGIN + "".join(name + tile for name in names) + _END


AYA_VISION = VisionFamily(
    ("AyaVisionForConditionalGeneration",),
    _TOKEN,
    expansion,
    lambda part, image, options: image_rows(part, image, options, crop_to_patches=True),
    written=_PLACEHOLDER,
    words=(_BEGIN, _END),
    placeholder=_PLACEHOLDER,
)
