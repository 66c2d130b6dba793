"""Qwen-VL, Qwen2-VL, Qwen2.5-VL and Qwen3-VL; PaddleOCR-VL, whose images are on a grid as theirs."""

import dataclasses
import importlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from lmdeploy.vl.families import qwen_video
from lmdeploy.vl.families.common import (
    Checkpoint,
    NativeForm,
    Options,
    Squarer,
    VisionFamily,
    VisionPart,
    image_rows,
    renamed,
    saved_processor,
)

if TYPE_CHECKING:
    import torch


# Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: images of any shape, whose tokens are on a grid of rows and columns.
_QWEN2_VL_TOKEN, _QWEN2_VL_BEGIN, _QWEN2_VL_END = "<|image_pad|>", "<|vision_start|>", "<|vision_end|>"


def pixel_bounds(part: VisionPart, options: Options) -> dict[str, int]:
    """Return how few and how many pixels an image is scaled to: within what the model was made for.

    Raises `ValueError` if ``min_pixels`` or ``max_pixels`` is no number of pixels.
    """
    size = part.processor.size
    bounds = qwen_video.requested_pixels(options, size["shortest_edge"], size["longest_edge"])
    return dict(zip(("min_pixels", "max_pixels"), bounds, strict=True))


def grid(part: VisionPart, size: tuple[int, int], options: Options) -> tuple[int, int, int]:
    """Return frames, rows and columns of an image's tokens."""
    width, height = size
    processor = part.processor
    unit = int(processor.patch_size * processor.merge_size)
    module = importlib.import_module(type(processor).__module__)
    rows, columns = module.smart_resize(height, width, factor=unit, **pixel_bounds(part, options))
    return 1, rows // unit, columns // unit


def qwen2_vl_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens; a template writes the tags around them."""
    _, rows, columns = grid(part, size, options)
    return _QWEN2_VL_TOKEN * (rows * columns)


def qwen2_vl_features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    """Return the rows: the embedding, then what the model adds after its first layers, if anything."""
    bounds = pixel_bounds(part, options)
    size = {"shortest_edge": bounds["min_pixels"], "longest_edge": bounds["max_pixels"]}
    return image_rows(part, image, options, size=size)


QWEN2_VL = VisionFamily(
    (
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForConditionalGeneration",
    ),
    _QWEN2_VL_TOKEN,
    qwen2_vl_expansion,
    qwen2_vl_features,
    written=f"{_QWEN2_VL_BEGIN}{_QWEN2_VL_TOKEN}{_QWEN2_VL_END}",
    words=(_QWEN2_VL_BEGIN, _QWEN2_VL_END),
    grid=grid,
    video=qwen_video.FORM,
)

PADDLEOCR_VL = dataclasses.replace(
    QWEN2_VL.with_token("<|IMAGE_PLACEHOLDER|>"),
    architectures=("PaddleOCRVLForConditionalGeneration",),
    written="<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
    words=("<|IMAGE_START|>", "<|IMAGE_END|>"),
    video=None,
)
# The same rows, at positions of the text.
LFM3_VL = dataclasses.replace(
    QWEN2_VL,
    architectures=("Exaone4_5_ForConditionalGeneration", "Lfm3VlForConditionalGeneration"),
    grid=VisionFamily.grid,
    video=dataclasses.replace(qwen_video.FORM, grid=VisionFamily.grid),
)


# MiniMax-M3: the same patches, whose processor in ``transformers`` needs torchvision; rows are between tags.
_M3_BEGIN, _M3_END = "]<]start of image[>[", "]<]end of image[>["


def minimax_m3_processor(checkpoint: Path) -> Any:
    """Return Qwen2-VL's image processor with the settings of the checkpoint's."""
    from transformers import Qwen2VLImageProcessorPil

    settings = saved_processor(checkpoint)
    size = settings.get("size")
    names = ("patch_size", "merge_size", "image_mean", "image_std", "resample")
    return Qwen2VLImageProcessorPil(
        size=size if isinstance(size, Mapping) else {"shortest_edge": 4 * 28 * 28, "longest_edge": 451584},
        **{name: settings[name] for name in names if name in settings},
    )


MINIMAX_M3 = VisionFamily(
    ("MiniMaxM3SparseForConditionalGeneration",),
    "]<]image[>[",
    lambda part, size, options: _M3_BEGIN + "]<]image[>[" * math.prod(grid(part, size, options)) + _M3_END,
    qwen2_vl_features,
    written="]<]image[>[",
    goes_first=False,
    words=(_M3_BEGIN, _M3_END),
    processor=minimax_m3_processor,
)


# Qwen-VL: images in one size, a fixed number of rows between tags, numbered from 1.
_QWEN_VL_TOKEN, _QWEN_VL_BEGIN, _QWEN_VL_END = "<imgpad>", "<img>", "</img>"
_QUERIES = 256  # where config.json does not say
_NAMES = (
    (r"^(transformer\.visual\.)?(transformer\.)?", ""),
    (r"^resblocks\.(\d+)\.", r"encoder.layers.\1."),
    (r"(layers\.\d+)\.attn\.", r"\1.self_attn."),
    (r"\.ln_(\d)\.", r".layer_norm\1."),
    (r"\.c_fc\.", ".fc1."),
    (r"\.c_proj\.", ".fc2."),
)


def qwen_vl_config(checkpoint: Checkpoint) -> Any:
    """Return a ``LlavaConfig`` with the tower's sizes, the width of the rows and their number."""
    from transformers import LlavaConfig

    config = checkpoint[1]["visual"]
    return LlavaConfig(
        architectures=["lmdeploy.vl.qwen_vl_tower:QwenVlTower"],
        vision_config={
            "model_type": "clip_vision_model",
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-6,
            "hidden_size": config["width"],
            "image_size": config["image_size"],
            "intermediate_size": int(config["width"] * config["mlp_ratio"]),
            "num_attention_heads": config["heads"],
            "num_hidden_layers": config["layers"],
            "patch_size": config["patch_size"],
        },
        text_config={"model_type": "llama", "hidden_size": config["output_dim"], "num_attention_heads": 1},
        image_seq_length=int(config.get("n_queries", _QUERIES)),
    )


def processor(checkpoint: Checkpoint) -> Squarer:
    """Return the image processor that makes images square."""
    return Squarer(int(checkpoint[1]["visual"]["image_size"]))


def qwen_vl_tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Yield the tensors; query, key and value of a head are adjacent on disk."""
    heads = checkpoint[1]["visual"]["heads"]
    for name, values in renamed(*_NAMES)(checkpoint):
        if ".in_proj." in name:
            for part, rows in zip("qkv", values.unflatten(0, (heads, 3, -1)).unbind(1), strict=True):
                yield name.replace(".in_proj.", f".{part}_proj."), rows.flatten(0, 1)
        else:
            yield name, values


def number(part: VisionPart, index: int, options: Options) -> str:
    """Return the placeholder text of an image."""
    return f"Image {index + 1}: "


def qwen_vl_features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    rows: torch.Tensor = part.model(part.processor.pixels(image))
    return rows


QWEN_VL = VisionFamily(
    ("QWenLMHeadModel",),
    _QWEN_VL_TOKEN,
    lambda part, size, options: f"{_QWEN_VL_BEGIN}{_QWEN_VL_TOKEN * part.config.image_seq_length}{_QWEN_VL_END}",
    qwen_vl_features,
    words=(_QWEN_VL_BEGIN, _QWEN_VL_END),
    native=NativeForm(qwen_vl_config, processor, qwen_vl_tensors),
    number=number,
)
