"""GLM-4.1V and GLM-OCR, GLM-4V-9B, and CogVLM and CogVLM2."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from PIL.Image import Image

from lmdeploy.turbomind.safetensors_index import read_checkpoint
from lmdeploy.vl.families import qwen, qwen_video
from lmdeploy.vl.families.common import Checkpoint, NativeForm, Options, Squarer, VisionFamily, VisionPart, renamed
from lmdeploy.vl.videos import times_of

if TYPE_CHECKING:
    import torch


# GLM-4.1V: as Qwen2-VL, with tags and bounds of its own.
_GLM4V_TOKEN, _BEGIN, _GLM4V_END = "<|image|>", "<|begin_of_image|>", "<|end_of_image|>"
_VIDEO = "<|video|>"


def grid(part: VisionPart, size: tuple[int, int], options: Options) -> tuple[int, int, int]:
    """Return frames, rows and columns of an image's tokens; the bounds are those of its frames together."""
    from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize

    width, height = size
    processor = part.processor
    unit, frames = int(processor.patch_size * processor.merge_size), int(processor.temporal_patch_size)
    bounds = qwen.pixel_bounds(part, options)
    rows, columns = smart_resize(frames, height, width, temporal_factor=frames, factor=unit, **bounds)
    return 1, rows // unit, columns // unit


def glm4v_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens; a template writes the tags around them."""
    _, rows, columns = grid(part, size, options)
    return _GLM4V_TOKEN * (rows * columns)


def video_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens of every two frames, between tags, each before the time of the first."""
    _, rows, columns = qwen_video.grid(part, size, options)
    run = _BEGIN + _GLM4V_TOKEN * (rows * columns) + _GLM4V_END
    has_words = part.config.model_type in ("glm46v", "glm_ocr")
    return "".join(run + (f"{time:.1f} seconds" if has_words else str(int(time))) for time in times_of(options)[::2])


GLM4V = dataclasses.replace(
    qwen.QWEN2_VL,
    architectures=(
        "Glm4vForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "Glm46VForConditionalGeneration",
        "GlmOcrForConditionalGeneration",
    ),
    token=_GLM4V_TOKEN,
    expansion=glm4v_expansion,
    written=f"{_BEGIN}{_GLM4V_TOKEN}{_GLM4V_END}",
    goes_first=False,
    words=(_BEGIN, _GLM4V_END),
    grid=grid,
    video=dataclasses.replace(
        qwen_video.FORM,
        token=_GLM4V_TOKEN,
        expansion=video_expansion,
        written=f"<|begin_of_video|>{_VIDEO}<|end_of_video|>",
        placeholder=_VIDEO,
        words=(_BEGIN, _GLM4V_END, "<|begin_of_video|>", "<|end_of_video|>"),
    ),
)


# GLM-4V 9B: images in one size, at one position of the text, between a vector that begins and one that ends them.
# The tokenizer has tags, and nothing for what is between them.
_GLM_4V_9B_TOKEN, _GLM_4V_9B_END = "<|begin_of_image|>", "<|end_of_image|>"
_CLIP = ((r"\.attention\.query_key_value", ".attention.qkv"), (r"\.attention\.dense", ".attention.out_proj"))


def glm_4v_9b_config(checkpoint: Checkpoint) -> Any:
    """Return a ``LlavaConfig`` with the tower's sizes, those of the rows, and what these are divided by."""
    raw = checkpoint[1]
    return eva_clip(raw, raw["ffn_hidden_size"], scaling_factor=float(raw["vision_config"]["scaling_factor"]))


def eva_clip(raw: Mapping[str, Any], projected: int, **more: Any) -> Any:
    """Return a ``LlavaConfig`` of a tower of EVA-CLIP.

    ``raw``: the checkpoint's config. ``projected``: hidden numbers of the MLP that makes rows. ``more``: further
    fields.
    """
    from transformers import LlavaConfig

    config = raw["vision_config"]
    names = ("hidden_size", "image_size", "intermediate_size", "num_hidden_layers", "patch_size", "layer_norm_eps")
    return LlavaConfig(
        architectures=["lmdeploy.vl.glm_4v_tower:Glm4vTower"],
        vision_config={
            "model_type": "clip_vision_model",
            "num_attention_heads": config["num_heads"],
            "hidden_act": config["hidden_act"],
            **{name: config[name] for name in names},
        },
        text_config={
            "model_type": "llama",
            "hidden_size": raw["hidden_size"],
            "intermediate_size": projected,
            "num_attention_heads": 1,
        },
        **more,
    )


def processor(checkpoint: Checkpoint) -> Squarer:
    """Return the image processor that makes images square."""
    return Squarer(int(checkpoint[1]["vision_config"]["image_size"]))


def glm_4v_9b_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens: one for four patches, and two for the ends."""
    vision = part.config.vision_config
    rows: int = (vision.image_size // vision.patch_size // 2) ** 2 + 2
    return _GLM_4V_9B_TOKEN * rows


def features(part: VisionPart, image: Image, options: Options) -> "torch.Tensor":
    rows: torch.Tensor = part.model(part.processor.pixels(image))
    return rows


GLM_4V_9B = VisionFamily(
    ("ChatGLMModel", "ChatGLMForConditionalGeneration"),
    _GLM_4V_9B_TOKEN,
    glm_4v_9b_expansion,
    features,
    words=(_GLM_4V_9B_END,),
    native=NativeForm(glm_4v_9b_config, processor, renamed((r"^(transformer\.vision\.)?(transformer\.)?", ""), *_CLIP)),
    shares_position=True,
)


# CogVLM and CogVLM2: images in one size, in front of all text, between a vector that begins and one that ends them.
#
# All but the last row take the decoder's weights for images (``ImagesSpec``); the patches' are at one position.
# The tokenizers are Vicuna's and Llama 3's, and have no token for images.
_COGVLM_TOKEN, _OTHER = "<unk>", "<|reserved_special_token_0|>"
_COGVLM_OWN = "model.vision."


def cogvlm_config(checkpoint: Checkpoint) -> Any:
    """Return a ``LlavaConfig`` with the tower's sizes and those of the rows."""
    folder, raw = checkpoint
    shapes = {name: info.shape for name, info in read_checkpoint(folder).tensors.items()}
    projected = shapes[f"{_COGVLM_OWN}linear_proj.gate_proj.weight"][0]
    return eva_clip(raw, projected, merged_size=shapes.get(f"{_COGVLM_OWN}conv.weight", (0,))[0], scaling_factor=1.0)


def cogvlm_expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens: one for a patch, or for four, and two for the ends."""
    vision = part.config.vision_config
    side = int(vision.image_size // vision.patch_size) // (2 if part.config.merged_size else 1)
    return _COGVLM_TOKEN * (side**2 + 2)


COGVLM = VisionFamily(
    ("CogVLMForCausalLM",),
    _COGVLM_TOKEN,
    cogvlm_expansion,
    features,
    written=_COGVLM_TOKEN,
    native=NativeForm(cogvlm_config, processor, renamed((r"^(model\.vision\.)?(transformer\.)?", ""), *_CLIP)),
    shares_position=True,
    other_token=_OTHER,
    leads_prompt=True,
)
