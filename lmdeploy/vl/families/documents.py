"""GOT-OCR 2.0 and DeepSeek-OCR 2: documents in few tokens."""

from lmdeploy.vl.families.common import Options, VisionFamily, VisionPart, image_rows

# GOT-OCR 2.0: one size of image, a row for four by four patches.
_GOT_TOKEN, _GOT_BEGIN, _GOT_END = "<imgpad>", "<img>", "</img>"


def got_ocr_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens; a template writes the tags around them."""
    vision = part.config.vision_config
    return _GOT_TOKEN * int(-(-vision.image_size // vision.patch_size // 4)) ** 2


GOT_OCR = VisionFamily(
    ("GotOcr2ForConditionalGeneration",),
    _GOT_TOKEN,
    got_ocr_expansion,
    lambda part, image, options: image_rows(part, image, options, crop_to_patches=False),
    written=f"{_GOT_BEGIN}{_GOT_TOKEN}{_GOT_END}\n",
    words=(_GOT_BEGIN, _GOT_END),
)


# DeepSeek-OCR 2: tiles of large images, then the whole, padded to a square, and a separator.
_TOKEN = "<image>"


def deepseek_ocr_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of tiles, the whole and the separator."""
    from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import get_optimal_tiled_canvas

    processor, unit = part.processor, 4 * part.config.vision_config.sam_config.patch_size
    side, whole, tiles = processor.tile_size, processor.tile_size, 0
    if processor.crop_to_patches:
        whole = processor.size["height"]
        if max(size) > side:
            bounds = processor.min_patches, processor.max_patches
            columns, rows = get_optimal_tiled_canvas((size[1], size[0]), (side, side), *bounds)
            tiles = columns * rows
    return _TOKEN * int(tiles * (-(-side // unit)) ** 2 + (-(-whole // unit)) ** 2 + 1)


DEEPSEEK_OCR = VisionFamily(("DeepseekOcr2ForConditionalGeneration",), _TOKEN, deepseek_ocr_expansion)
