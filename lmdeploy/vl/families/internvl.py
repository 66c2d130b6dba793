"""InternVL as ``transformers`` and as its authors publish it."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from lmdeploy.vl.families.common import (
    Checkpoint,
    NativeForm,
    Options,
    VideoForm,
    VisionFamily,
    VisionPart,
    image_rows,
    renamed,
)
from lmdeploy.vl.videos import frames_in, times_of

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image


# InternVL 2.5, 3 and 3.5 as converted for ``transformers``: tiles of one size, then the whole image.
_TOKEN, _BEGIN, _END = "<IMG_CONTEXT>", "<img>", "</img>"
_VIDEO = "<video>"
_TILES_OF_DETAIL = {"low": 6, "medium": 12, "high": 24}


def tiling(part: VisionPart, options: Options) -> dict[str, Any]:
    """Return how an image is cut: at most as the model was made for.

    Raises `ValueError` if ``max_dynamic_patch`` is no number of tiles.
    """
    max_tiles = part.processor.max_patches
    requested = options.get("max_dynamic_patch", _TILES_OF_DETAIL.get(str(options.get("detail")), max_tiles))
    if type(requested) is not int or requested < 1:
        raise ValueError(f"max_dynamic_patch must be a whole number >= 1, got {requested!r}")
    return {"crop_to_patches": True, "max_patches": min(requested, max_tiles)}


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of all tiles, between tags."""
    width, height = size
    tiles: int = part.processor.get_number_of_image_patches(height, width, tiling(part, options))
    return _BEGIN + _TOKEN * (tiles * int(part.config.image_seq_length)) + _END


def internvl_features(part: VisionPart, image: "Image", options: Options) -> "torch.Tensor":
    """Return the rows of all tiles."""
    return image_rows(part, image, options, **tiling(part, options))


def video_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of each frame, between delimiters and after its number."""
    frame = _BEGIN + _TOKEN * int(part.config.image_seq_length) + _END
    return "\n".join(f"Frame{number}: {frame}" for number in range(1, len(times_of(options)) + 1))


def internvl_frames(part: VisionPart, stacked: "Image", options: Options) -> "torch.Tensor":
    """Return the rows of all frames, each of which is a tile."""
    return image_rows(part, frames_in(stacked, len(times_of(options))), options, crop_to_patches=False)


INTERNVL = VisionFamily(
    ("InternVLForConditionalGeneration",),
    _TOKEN,
    expansion,
    internvl_features,
    words=(_BEGIN, _END),
    video=VideoForm(
        _TOKEN, video_expansion, internvl_frames, written=f"{_VIDEO}\n", placeholder=_VIDEO, words=(_BEGIN, _END)
    ),
)


# Qianfan-OCR: the same tiles, of which a template writes a placeholder alone.
QIANFAN_OCR = dataclasses.replace(
    INTERNVL,
    architectures=("QianfanOCRForConditionalGeneration",),
    written="<image>\n",
    placeholder="<image>",
    video=None,
)


# InternVL 1.1 to 3.5 and Mono-InternVL in their authors' layout: other names for what ``transformers`` has.
#
# Mono-InternVL has no tower: its decoder gets the embeddings of patches.
_NAMES = (
    (r"^vision_model\.encoder\.layers\.", "vision_tower.encoder.layer."),
    (r"^vision_model\.", "vision_tower."),
    (r"\bclass_embedding$", "cls_token"),
    (r"\bpatch_embedding\.", "patch_embeddings.projection."),
    (r"\bposition_embedding$", "position_embeddings"),
    (r"\.ls(\d)$", r".lambda_\1"),
    (r"\.attn\.proj\.", ".attention.projection_layer."),
    (r"\.attn\.", ".attention."),
    (r"\.norm1\.", ".layernorm_before."),
    (r"\.norm2\.", ".layernorm_after."),
    (r"^mlp1\.0\.", "multi_modal_projector.layer_norm."),
    (r"^mlp1\.1\.", "multi_modal_projector.linear_1."),
    (r"^mlp1\.3\.", "multi_modal_projector.linear_2."),
)

_NO_TOWER = {
    "num_hidden_layers": 0,
    "num_attention_heads": 1,
    "intermediate_size": 1,
    "qkv_bias": False,
    "qk_normalization": False,
}


def internvl_chat_config(checkpoint: Checkpoint) -> Any:
    """Return the ``InternVLConfig``."""
    from transformers import InternVLConfig

    _, raw = checkpoint
    given = raw["vision_config"]
    if given.get("model_type") == "intern_vit_patch":
        given = {**given, **_NO_TOWER}
    same = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "image_size", "patch_size")
    optional = ("hidden_act", "layer_norm_eps", "norm_type")
    vision = {name: given[name] for name in same} | {name: given[name] for name in optional if name in given}
    vision |= {"attention_bias": given["qkv_bias"], "use_qk_norm": given["qk_normalization"]}
    ratio = raw["downsample_ratio"]
    hidden = raw["llm_config"]["hidden_size"]
    return InternVLConfig(
        architectures=["InternVLForConditionalGeneration"],
        vision_config=vision,
        text_config={"model_type": "llama", "hidden_size": hidden, "num_attention_heads": 1, "num_key_value_heads": 1},
        downsample_ratio=ratio,
        vision_feature_layer=raw.get("select_layer", -1),
        image_seq_length=int((_side(checkpoint) // given["patch_size"] * ratio) ** 2),
        ps_version=raw.get("ps_version", "v1"),
    )


def processor(checkpoint: Checkpoint) -> Any:
    """Return the image processor that cuts images into tiles, as config.json says."""
    from transformers import GotOcr2ImageProcessorPil
    from transformers.image_utils import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

    _, raw = checkpoint
    return GotOcr2ImageProcessorPil(
        size={"height": _side(checkpoint), "width": _side(checkpoint)},
        image_mean=IMAGENET_DEFAULT_MEAN,
        image_std=IMAGENET_DEFAULT_STD,
        min_patches=raw["min_dynamic_patch"] if raw.get("dynamic_image_size") else 1,
        max_patches=raw["max_dynamic_patch"] if raw.get("dynamic_image_size") else 1,
    )


def _side(checkpoint: Checkpoint) -> int:
    """Return the pixels of a tile's side."""
    _, raw = checkpoint
    return int(raw.get("force_image_size") or raw["vision_config"]["image_size"])


def _as_trained(part: VisionPart, rows: "torch.Tensor") -> "torch.Tensor":
    """Return rows ``[tiles * tokens, size]`` in the order of the release: 1.1 and 1.2 go through a tile by columns."""
    if part.config.ps_version != "v1":
        return rows
    side = math.isqrt(part.config.image_seq_length)
    return rows.unflatten(0, (-1, side, side)).transpose(1, 2).flatten(0, 2)


assert INTERNVL.video is not None
INTERNVL_CHAT = dataclasses.replace(
    INTERNVL,
    architectures=("InternVLChatModel",),
    features=lambda part, image, options: _as_trained(part, internvl_features(part, image, options)),
    native=NativeForm(internvl_chat_config, processor, renamed(*_NAMES)),
    video=dataclasses.replace(
        INTERNVL.video,
        features=lambda part, stacked, options: _as_trained(part, internvl_frames(part, stacked, options)),
    ),
)
