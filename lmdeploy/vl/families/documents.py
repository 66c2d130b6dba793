"""GOT-OCR 2.0 and DeepSeek-OCR 2: documents in few tokens."""

import dataclasses
from typing import Any

from lmdeploy.turbomind.safetensors_index import read_checkpoint
from lmdeploy.vl.families.common import Checkpoint, NativeForm, Options, VisionFamily, VisionPart, image_rows
from lmdeploy.vl.families.deepseek_vl import sam

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


# The same as its authors publish it: config.json leaves out most sizes of the tower, which are those of its tensors.
_SAM, _QWEN2, _HEAD_DIM = "model.sam_model.", "model.qwen2_model.model.model.", 64


def published_config(checkpoint: Checkpoint) -> Any:
    """Return the ``DeepseekOcr2Config``."""
    from transformers import DeepseekOcr2Config

    folder, raw = checkpoint
    shapes = {name: info.shape for name, info in read_checkpoint(folder).tensors.items()}
    rows = {
        part: shapes[f"{_QWEN2}layers.0.{part}_proj.weight"][0] for part in ("self_attn.q", "self_attn.k", "mlp.up")
    }
    encoder = {
        "hidden_size": shapes[f"{_QWEN2}norm.weight"][0],
        "intermediate_size": rows["mlp.up"],
        "num_hidden_layers": sum(
            name.startswith(_QWEN2) and name.endswith("input_layernorm.weight") for name in shapes
        ),
        "num_attention_heads": rows["self_attn.q"] // _HEAD_DIM,
        "num_key_value_heads": rows["self_attn.k"] // _HEAD_DIM,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    }
    tower = sam({name.removeprefix(_SAM): shape for name, shape in shapes.items() if name.startswith(_SAM)})
    tower["downsample_channels"] = [shapes[f"{_SAM}net_{part}.weight"][0] for part in (2, 3)]
    text = {"hidden_size": raw["hidden_size"], "num_attention_heads": 1, "mlp_layer_types": []}
    return DeepseekOcr2Config(
        architectures=["DeepseekOcr2ForConditionalGeneration"],
        vision_config={"sam_config": tower, "encoder_config": encoder},
        text_config=text,
    )


def published_processor(checkpoint: Checkpoint) -> Any:
    """Return the image processor, with the sizes of the release: a quarter less for tiles than for the whole."""
    from transformers import DeepseekOcr2ImageProcessorPil

    side = checkpoint[1]["vision_config"]["image_size"]
    return DeepseekOcr2ImageProcessorPil(size={"height": side, "width": side}, tile_size=side * 3 // 4)


DEEPSEEK_OCR_PUBLISHED = dataclasses.replace(
    DEEPSEEK_OCR,
    architectures=("DeepseekOCR2ForCausalLM",),
    native=NativeForm(published_config, published_processor),
)
