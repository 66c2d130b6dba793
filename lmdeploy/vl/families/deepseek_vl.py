"""DeepSeek-VL as ``transformers`` and as its authors publish it."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from math import isqrt
from typing import TYPE_CHECKING, Any

from lmdeploy.turbomind.safetensors_index import read_checkpoint
from lmdeploy.vl.families.common import Checkpoint, NativeForm, Options, VisionFamily, VisionPart
from lmdeploy.vl.tensors import seeing_tensors

if TYPE_CHECKING:
    import torch


# DeepSeek-VL as converted for ``transformers``: one size of image, and a larger one for the 7B model.
_TOKEN = "<image_placeholder>"


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    vision = part.config.vision_config
    return _TOKEN * int(vision.image_size // vision.patch_size) ** 2


DEEPSEEK_VL = VisionFamily(
    ("DeepseekVLForConditionalGeneration", "DeepseekVLHybridForConditionalGeneration"),
    _TOKEN,
    expansion,
    written=_TOKEN,
)


# DeepSeek-VL in its authors' own layout: SigLIP in timm's names and, for the 7B, SAM in Meta's alongside it.
#
# config.json has the towers' names alone, so that their sizes are read off the tensors.
_HEAD_DIM = 64  # of both towers
_LOW = re.compile(r"^vision_model\.(vision_tower_low\.)?vision_tower\.")
_HIGH = "vision_model.vision_tower_high.vision_tower."
_LOW_NAMES = (
    (r"^pos_embed$", "embeddings.position_embedding.weight"),
    (r"^patch_embed\.proj\.", "embeddings.patch_embedding."),
    (r"^blocks\.", "encoder.layers."),
    (r"\.attn\.proj\.", ".self_attn.out_proj."),
    (r"\.attn\.", ".self_attn."),
    (r"\.norm(\d)\.", r".layer_norm\1."),
    (r"^norm\.", "post_layernorm."),
)
_ENCODER = "high_res_vision_model.vision_encoder."
_HIGH_NAMES = (
    (r"^(neck|neck_hd)\.0\.", r"\1.conv1."),
    (r"^(neck|neck_hd)\.1\.", r"\1.layer_norm1."),
    (r"^(neck|neck_hd)\.2\.", r"\1.conv2."),
    (r"^(neck|neck_hd)\.3\.", r"\1.layer_norm2."),
    (r"^neck_hd\.", "high_res_vision_neck."),
    (r"^downsamples\.0\.", "high_res_vision_proj.conv1."),
    (r"^downsamples\.1\.", "high_res_vision_proj.conv2."),
    (r"^hd_alpha_downsamples$", "high_res_vision_alpha"),
    (r"^patch_embed\.proj\.", f"{_ENCODER}patch_embed.projection."),
    (r"^blocks\.(\d+)\.norm(\d)\.", rf"{_ENCODER}layers.\1.layer_norm\2."),
    (r"^blocks\.", f"{_ENCODER}layers."),
    (r"^(pos_embed$|neck\.)", rf"{_ENCODER}\1"),
)
_ALIGNER_NAMES = (
    (r"^aligner\.layers\.0\.", "aligner.linear1."),
    (r"^aligner\.layers\.2\.", "aligner.linear2."),
    (r"^aligner\.layers\.1\.", "aligner.proj."),
    (r"^aligner\.low_up_proj\.", "aligner.vision_proj."),
    (r"^aligner\.high_up_proj\.", "aligner.high_res_vision_proj."),
)


def deepseek_vl_original_config(checkpoint: Checkpoint) -> Any:
    """Return the ``DeepseekVLConfig``, or the ``DeepseekVLHybridConfig`` of a model with two towers."""
    from transformers import DeepseekVLConfig, DeepseekVLHybridConfig, LlamaConfig

    folder, raw = checkpoint
    shapes = {name: info.shape for name, info in read_checkpoint(folder).tensors.items()}
    hidden = LlamaConfig.from_dict(dict(raw["language_config"])).hidden_size
    text = {"model_type": "llama", "hidden_size": hidden, "num_attention_heads": 1, "num_key_value_heads": 1}
    low = _siglip({_LOW.sub("", name): shape for name, shape in shapes.items() if _LOW.match(name)})
    if not _has_two(raw):
        return DeepseekVLConfig(
            architectures=["DeepseekVLForConditionalGeneration"], vision_config=low, text_config=text
        )
    high = sam({name.removeprefix(_HIGH): shape for name, shape in shapes.items() if name.startswith(_HIGH)})
    return DeepseekVLHybridConfig(
        architectures=["DeepseekVLHybridForConditionalGeneration"],
        vision_config=low,
        high_res_vision_config=high,
        text_config=text,
    )


def processor(checkpoint: Checkpoint) -> Any:
    """Return the image processor, by preprocessor_config.json and the towers' own settings; it makes images square."""
    from transformers import DeepseekVLHybridImageProcessorPil, DeepseekVLImageProcessorPil
    from transformers.image_utils import PILImageResampling

    folder, raw = checkpoint
    settings = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    side = {"height": settings["image_size"], "width": settings["image_size"]}
    smallest, mean, std = settings["min_size"], settings["image_mean"], settings["image_std"]
    if not _has_two(raw):
        return DeepseekVLImageProcessorPil(size=side, min_size=smallest, image_mean=mean, image_std=std)
    low = raw["vision_config"]["params"]["low_res_cfg"]
    return DeepseekVLHybridImageProcessorPil(
        size={"height": low["image_size"], "width": low["image_size"]},
        image_mean=low["pixel_mean"],
        image_std=low["pixel_std"],
        resample=PILImageResampling.BILINEAR,
        high_res_size=side,
        high_res_image_mean=mean,
        high_res_image_std=std,
        min_size=smallest,
    )


def deepseek_vl_original_tensors(checkpoint: Checkpoint) -> "Iterator[tuple[str, torch.Tensor]]":
    """Yield the tensors by their native names; SigLIP's queries, keys and values are in one on disk."""
    for name, values in seeing_tensors(checkpoint[0]):
        if name.startswith("aligner."):
            yield "model." + _renamed(name, _ALIGNER_NAMES), values
        elif name.startswith(_HIGH):
            yield "model." + _renamed(name.removeprefix(_HIGH), _HIGH_NAMES), values
        elif _LOW.match(name):
            native = "model.vision_model." + _renamed(_LOW.sub("", name), _LOW_NAMES)
            if ".qkv." in native:
                for part, rows in zip("qkv", values.chunk(3), strict=True):
                    yield native.replace(".qkv.", f".{part}_proj."), rows
            else:
                yield native, values.squeeze(0) if "position_embedding" in native else values


def _has_two(raw: Mapping[str, Any]) -> bool:
    return bool(raw["vision_config"]["cls"] == "HybridVisionTower")


def _renamed(name: str, names: tuple[tuple[str, str], ...]) -> str:
    for pattern, native in names:
        name = re.sub(pattern, native, name)
    return name


def _siglip(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the config of a SigLIP whose tensors have these shapes."""
    _, positions, hidden = shapes["pos_embed"]
    patch = shapes["patch_embed.proj.weight"][-1]
    return {
        "hidden_size": hidden,
        "num_attention_heads": hidden // _HEAD_DIM,
        "num_hidden_layers": _layers(shapes),
        "intermediate_size": shapes["blocks.0.mlp.fc1.weight"][0],
        "patch_size": patch,
        "image_size": isqrt(positions) * patch,
        "hidden_act": "gelu",
        "vision_use_head": False,
    }


def sam(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the config of a SAM whose tensors have these shapes."""
    _, grid, _, hidden = shapes["pos_embed"]
    patch = shapes["patch_embed.proj.weight"][-1]
    # A layer has a row for each distance within what it sees: a window, or all of the image.
    seen = [(shapes[f"blocks.{layer}.attn.rel_pos_h"][0] + 1) // 2 for layer in range(_layers(shapes))]
    return {
        "hidden_size": hidden,
        "num_attention_heads": hidden // _HEAD_DIM,
        "num_hidden_layers": len(seen),
        "mlp_dim": shapes["blocks.0.mlp.lin1.weight"][0],
        "patch_size": patch,
        "image_size": grid * patch,
        "output_channels": shapes["neck.0.weight"][0],
        "global_attn_indexes": [layer for layer, side in enumerate(seen) if side == grid],
        "window_size": min(seen),
    }


def _layers(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(name.endswith(".norm1.weight") for name in shapes)


DEEPSEEK_VL_ORIGINAL = dataclasses.replace(
    DEEPSEEK_VL,
    architectures=("MultiModalityCausalLM",),
    native=NativeForm(deepseek_vl_original_config, processor, deepseek_vl_original_tensors),
)
