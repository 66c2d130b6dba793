"""Unsupported architectures, each with the reason and an alternative.

Support of one deletes its line.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lmdeploy.errors import UnsupportedModelError

Config = Mapping[str, Any]


@dataclass(frozen=True)
class UnsupportedModel:
    """Checkpoints that are refused."""

    architectures: tuple[str, ...]  # names in config.json's ``architectures`` or ``auto_map``
    models: str  # what people call them
    lacks: str  # what the server lacks for them
    instead: str = "the models of docs/reference/vision.md"  # what answers nearly the same questions
    # Whether a config.json is one of them, for architectures that others have too
    when: Callable[[Config], bool] = lambda raw: True


def reject_unsupported(raw: Config) -> None:
    """Raise ``UnsupportedModelError`` for a checkpoint with this config.json that is one of these."""
    named = raw.get("architectures")
    code = raw.get("auto_map")
    names = [*(named if isinstance(named, list) else ()), *(code.values() if isinstance(code, Mapping) else ())]
    found = {str(name).rpartition(".")[2] for name in names}
    for row in UNSUPPORTED:
        name = next((name for name in row.architectures if name in found), None)
        if name is not None and row.when(raw):
            raise UnsupportedModelError(
                f"{row.models} ({name}) cannot be served: what is lacking is {row.lacks}; use {row.instead}"
            )


# Encoders of other forms than those that are served: each prefix with each ending.
ENCODERS = tuple(
    prefix + ending
    for prefix in ("Electra", "Deberta", "Albert")
    for ending in ("Model", "ForSequenceClassification", "ForMaskedLM")
)

_LLAVA = ("LlavaLlamaForCausalLM", "LlavaMistralForCausalLM")
_PROJECTORS = ("mlp2x_gelu", "mlp2x_gelu_Norm")
_LLAVA_HF = "the models as converted for transformers (llava-hf/...)"
_INTERNVL = "InternVL2, 2.5, 3 or 3.5"
UNSUPPORTED = (
    UnsupportedModel(
        ENCODERS,
        "ELECTRA, the first DeBERTa and ALBERT",
        "their form of attention or embeddings",
        "the encoders of docs/reference/supported-models.md, such as all-MiniLM and bge",
    ),
    UnsupportedModel(
        ("ChatGLMForConditionalGeneration", "ChatGLMModel"),
        "ChatGLM-6B",
        "its attention, whose positions have two dimensions",
        "ChatGLM2-6B, ChatGLM3-6B or GLM-4-9B",
        when=lambda raw: "position_encoding_2d" in raw or "inner_hidden_size" in raw,
    ),
    UnsupportedModel(
        ("LlamaForCausalLMEagle3",),
        "EAGLE-3 heads",
        "a model of its own: they draft tokens for the model that they were trained for",
        'that model with --speculative-config \'{"method": "eagle3", "model": "HEAD"}\'',
    ),
    UnsupportedModel(
        ("DFlashDraftModel",),
        "DFlash drafts",
        "attention of a block of masked tokens to one another, which are drafted in one pass",
        "the model that it was trained for, with an EAGLE-3 head, its own mtp layer or ngram in --speculative-config",
    ),
    UnsupportedModel(
        ("LongcatFlashForCausalLM", "LongcatCausalLM"),
        "LongCat-Flash",
        "experts whose result is added half a layer later, and experts that compute nothing",
        "DeepSeek-V3.2 or GLM-4.6",
    ),
    UnsupportedModel(
        tuple(f"Inkling{version}For{kind}" for version in ("", "2") for kind in ("CausalLM", "ConditionalGeneration")),
        "Inkling",
        "biases of scores that each token makes for distances, and convolutions of keys, values and what halves add",
        "Gemma 4 or Qwen3.5",
    ),
    UnsupportedModel(
        ("MistralLarge4ForConditionalGeneration",),
        "Mistral Large 4",
        "latent keys that layers share (kv_source_layers), and queries scaled by learned numbers of their position",
        "Mistral Small 4 or DeepSeek-V3.2",
    ),
    UnsupportedModel(
        ("KimiK3ForConditionalGeneration",),
        "Kimi K3",
        "its activation (situ), and layers that attend to the residual streams of earlier ones (attn_res_block_size)",
        "Kimi K2 or Kimi Linear",
    ),
    UnsupportedModel(
        ("Phi3SmallForCausalLM",),
        "Phi-3-small",
        "attention to some of the blocks of tokens (blocksparse_vert_stride), and its activation (gegelu)",
        "Phi-3-mini or Phi-4",
    ),
    UnsupportedModel(
        ("InternVLChatModel",),
        "InternVL with tiles alone",
        "tiles (dynamic_image_size) without the whole image after them (use_thumbnail)",
        _INTERNVL,
        when=lambda raw: bool(raw.get("dynamic_image_size")) and not raw.get("use_thumbnail"),
    ),
    UnsupportedModel(
        ("Molmo2ForConditionalGeneration",), "Molmo2", "attention in both directions among a prompt's images"
    ),
    UnsupportedModel(
        ("PaliGemmaForConditionalGeneration",),
        "PaliGemma",
        "attention in both directions within a whole prompt, its texts included",
        "Gemma 3 or 4",
    ),
    UnsupportedModel(
        ("HunYuanVLForConditionalGeneration",),
        "HunYuanVL",
        "positions of four axes (xdrope_section), of which those of images count anew from 0",
        "PaddleOCR-VL, GLM-OCR or Qwen3-VL",
    ),
    UnsupportedModel(
        ("MiniGeminiLlamaForCausalLM", "MGMLlamaForCausalLM"),
        "Mini-Gemini",
        "a second tower, known by its authors' package alone",
        "LLaVA 1.6",
    ),
    UnsupportedModel(
        ("Phi4MultimodalForCausalLM",),
        "Phi-4-multimodal as converted for transformers",
        "low-rank matrices that are added in prompts with images",
        "microsoft/Phi-4-multimodal-instruct as published for texts, the models of docs/reference/vision.md for images",
    ),
    UnsupportedModel(
        ("MultiModalityCausalLM",),
        "Janus",
        "a tower of another kind, and one that draws",
        "DeepSeek-VL",
        when=lambda raw: "gen_vision_config" in raw or "vision_gen_enc_config" in raw,
    ),
    UnsupportedModel(
        _LLAVA,
        "InternVL built on LLaVA",
        "a tower of another kind than CLIP's",
        _INTERNVL,
        when=lambda raw: "internvit" in str(raw.get("mm_vision_tower")).lower(),
    ),
    UnsupportedModel(
        _LLAVA,
        "LLaVA before 1.5",
        f"a projector (mm_projector_type) other than {' and '.join(_PROJECTORS)}, or marks around images",
        _LLAVA_HF,
        when=lambda raw: raw.get("mm_projector_type") not in _PROJECTORS or bool(raw.get("mm_use_im_start_end")),
    ),
    UnsupportedModel(
        _LLAVA,
        "LLaVA with tiles of another kind",
        "image_aspect_ratio other than square, pad and anyres, the last with mm_patch_merge_type spatial_unpad",
        _LLAVA_HF,
        when=lambda raw: (
            raw.get("image_aspect_ratio", "square") not in ("square", "pad", "anyres")
            or (raw.get("image_aspect_ratio") == "anyres" and raw.get("mm_patch_merge_type") != "spatial_unpad")
        ),
    ),
    UnsupportedModel(
        ("LlavaQwenForCausalLM",),
        "LLaVA-OneVision in its authors' layout",
        "a way to read it",
        "the same as converted for transformers (llava-hf/llava-onevision-...)",
    ),
)
