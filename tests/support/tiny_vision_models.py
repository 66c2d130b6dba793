"""Tiny random checkpoints of vision-language models, with tokenizer and image processor, made by ``transformers``."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support.hybrid_models import EXPERTS, GATED_DELTA, QWEN4

IMAGE_SIDE = 28
PATCH = 14
GEMMA3_ROWS = 16  # of an image
MAX_TILES = 6  # of Llama 4 and Command A Vision
SQUARE = {"height": IMAGE_SIDE, "width": IMAGE_SIDE}
_SQUARES = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 12}  # an image's area
_QWEN_PROCESSOR = ("Qwen2VL", {"patch_size": PATCH, "merge_size": 2, "size": _SQUARES})
_QWEN_TOKENS = ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>"]
_QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
_AYA_TOKENS = ["<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>"]
_IDEFICS3_TOKENS = [
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
]
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "vocab_size": 320,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 257,
    "tie_word_embeddings": False,
}
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": IMAGE_SIDE,
    "patch_size": PATCH,
    "initializer_range": 0.3,
}
_ANY_SIZE = {name: value for name, value in _VISION.items() if name != "image_size"}
_INTERNVL_SIZES = {"image_size": [IMAGE_SIDE] * 2, "patch_size": [PATCH] * 2, "attention_bias": True}
# The class of Aya Vision in `transformers` leaves out the scale of logits.
_COHERE2 = {"model_type": "cohere2", **TEXT, "sliding_window": 16, "logit_scale": 1.0}
_SAM = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 4,
    "window_size": 4,
    "global_attn_indexes": [1],
    "initializer_range": 0.3,
}
_INTERNVL_EXPERTS: Mapping[str, Mapping[str, Any]] = {  # of the decoders that have any
    "qwen3_moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 24},
}
# As published ones do: images first, then the texts.
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] | upper }}: "
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] if c['type'] == 'image' %}IMAGE\n{% endfor %}"
    "{% for c in m['content'] if c['type'] == 'text' %}{{ c['text'] }}{% endfor %}{% endif %} {% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


# As those that know texts alone.
TEXT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] | upper }}: {{ m['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def _make(
    directory: Path,
    kind: str,
    special: Sequence[str],
    shown: str,
    processor: tuple[str, Mapping[str, Any]] | Mapping[str, Any],
    *,
    ids: Mapping[str, str],
    model: str = "",
    **fields: Any,
) -> Path:
    """Make a model of a kind whose template writes ``shown`` for an image.

    ``ids`` are fields with the number of a token. An image processor is given by its class, or written as it is.
    """
    import transformers

    write_tokenizer(directory, special, TEMPLATE.replace("IMAGE\n", shown))
    numbers = {name: token_id(directory, token) for name, token in ids.items()}
    config = getattr(transformers, f"{kind}Config")(**{"tie_word_embeddings": False, **numbers, **fields})
    if isinstance(processor, tuple):
        name, settings = processor
        getattr(transformers, f"{name}ImageProcessorPil")(**settings).save_pretrained(directory)
    else:
        (directory / "preprocessor_config.json").write_text(json.dumps(processor))
    return save_random(getattr(transformers, model or f"{kind}ForConditionalGeneration"), config, directory)


def make_tiny_llava(directory: Path, *, text: str = "llama", token: str = "<image>", pads: bool = False) -> Path:
    """Make a LLaVA 1.5 with a CLIP tower: 4 tokens an image of any size; its middle, or all of it padded."""
    sizes = {"size": {"shortest_edge": IMAGE_SIDE}, "crop_size": SQUARE}
    return _make(
        directory,
        "Llava",
        [token],
        f"{token}\n",
        ("Llava", {"do_pad": True, **sizes}) if pads else ("CLIP", sizes),
        vision_config={"model_type": "clip_vision_model", "projection_dim": 16, **_VISION},
        text_config={"model_type": text, **TEXT},
        ids={"image_token_index": token},
    )


def make_tiny_llava_next(directory: Path, *, text: str = "mistral", token: str = "<image>") -> Path:
    """Make a LLaVA 1.6 with a CLIP tower and tiles of 28 pixels."""
    grids = {"image_grid_pinpoints": [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]}
    sizes = {"size": {"shortest_edge": IMAGE_SIDE}, "crop_size": SQUARE}
    return _make(
        directory,
        "LlavaNext",
        [token],
        f"{token}\n",
        ("LlavaNext", sizes | grids),
        vision_config={"model_type": "clip_vision_model", "projection_dim": 16, **_VISION},
        text_config={"model_type": text, **TEXT} | ({"sliding_window": None} if text == "mistral" else {}),
        ids={"image_token_index": token},
        **grids,
    )


def make_tiny_llava_onevision(directory: Path) -> Path:
    """Make a LLaVA-OneVision with a SigLIP tower and tiles of 28 pixels, shrunk to about two of them."""
    grids = {"image_grid_pinpoints": [[28 * rows, 28 * columns] for rows in range(1, 4) for columns in range(1, 4)]}
    return _make(
        directory,
        "LlavaOnevision",
        ["<image>", "<video>"],
        "<image>\n",
        ("LlavaOnevision", {"size": SQUARE, **grids}),
        vision_config={"model_type": "siglip_vision_model", "vision_use_head": False, **_VISION},
        text_config={"model_type": "qwen2", **TEXT},
        ids={"image_token_index": "<image>", "video_token_index": "<video>"},
        vision_aspect_ratio="anyres_max_2",
        **grids,
    )


def _pixtral(side: int, patch: int) -> tuple[str, Mapping[str, Any]]:
    return "Pixtral", {"size": {"longest_edge": side}, "patch_size": {"height": patch, "width": patch}}


def make_tiny_pixtral(directory: Path) -> Path:
    """Make a Pixtral that sees squares of 14 pixels as a row."""
    return _make(
        directory,
        "Llava",
        ["[IMG]", "[IMG_BREAK]", "[IMG_END]"],
        "[IMG]",
        _pixtral(70, PATCH),
        vision_config={"model_type": "pixtral", **_VISION, "image_size": 70, "head_dim": 8},
        text_config={"model_type": "mistral", **TEXT, "sliding_window": None},
        ids={"image_token_index": "[IMG]"},
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )


def make_tiny_deepseek_vl(directory: Path, *, vision: Mapping[str, Any] = MappingProxyType({}), **pixels: Any) -> Path:
    """Make a DeepSeek-VL with a SigLIP tower: 4 tokens an image of any size."""
    token = "<image_placeholder>"
    return _make(
        directory,
        "DeepseekVL",
        [token],
        token,
        ("DeepseekVL", {"size": SQUARE, **pixels}),
        vision_config={"model_type": "siglip_vision_model", **_VISION, **vision},
        text_config={"model_type": "llama", **TEXT},
        ids={"image_token_id": token},
    )


def make_tiny_deepseek_vl_hybrid(
    directory: Path,
    *,
    vision: Mapping[str, Any] = MappingProxyType({}),
    large_vision: Mapping[str, Any] = MappingProxyType({}),
    **pixels: Any,
) -> Path:
    """Make the DeepSeek-VL that sees an image in two sizes: 4 tokens each."""
    token, large = "<image_placeholder>", {"height": 64, "width": 64}
    return _make(
        directory, "DeepseekVLHybrid", [token], token,
        ("DeepseekVLHybrid", {"size": SQUARE, "high_res_size": large, **pixels}),
        vision_config={"model_type": "siglip_vision_model", **_VISION, **vision},
        high_res_vision_config={
            **_VISION, "image_size": 64, "patch_size": 8, "output_channels": 4, "window_size": 4, "mlp_dim": 32,
            "global_attn_indexes": [0, 1], **large_vision,
        },
        text_config={"model_type": "llama", **TEXT},
        ids={"image_token_id": token},
    )  # fmt: skip


def make_tiny_internvl(
    directory: Path,
    *,
    text: str = "qwen2",
    rope_theta: float = 1e4,
    depth: int = 2,
    vision: Mapping[str, Any] = MappingProxyType({}),
    **pixels: Any,
) -> Path:
    """Make an InternVL with tiles of 28 pixels, one row each."""
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": rope_theta}}
    return _make(
        directory,
        "InternVL",
        ["<IMG_CONTEXT>", "<img>", "</img>"],
        "<IMG_CONTEXT>\n",
        ("GotOcr2", {"size": SQUARE, "max_patches": 6, **pixels}),
        vision_config={**_VISION, **_INTERNVL_SIZES, "num_hidden_layers": depth, **vision},
        text_config={"model_type": text, **rope, **TEXT, **_INTERNVL_EXPERTS.get(text, {})},
        ids={"image_token_id": "<IMG_CONTEXT>"},
        image_seq_length=1,
    )


def make_tiny_idefics3(directory: Path, *, kind: str = "Idefics3") -> Path:
    """Make an Idefics 3, or a SmolVLM, with tiles of 28 pixels, one row each."""
    sizes = {"size": {"longest_edge": 84}, "max_image_size": {"longest_edge": IMAGE_SIDE}}
    return _make(
        directory,
        kind,
        _IDEFICS3_TOKENS,
        "<image>",
        (kind, sizes),
        vision_config={"model_type": f"{kind.lower()}_vision", **_VISION},
        text_config={"model_type": "llama", **TEXT},
        ids={"image_token_id": "<image>"},
        scale_factor=2,
        pad_token_id=257,
    )


def make_tiny_mistral3(directory: Path, *, text: Mapping[str, Any] = MappingProxyType({}), depth: int = 2) -> Path:
    """Make a Mistral 3 that sees squares of 28 pixels as a row; ``text`` are fields of its text part."""
    vision = {"image_size": 112, "head_dim": 8, "num_hidden_layers": depth}
    return _make(
        directory,
        "Mistral3",
        ["[IMG]", "[IMG_BREAK]", "[IMG_END]"],
        "[IMG]",
        _pixtral(112, PATCH),
        vision_config={"model_type": "pixtral", **_VISION, **vision},
        text_config={"model_type": "mistral", **TEXT, "sliding_window": None, **text},
        ids={"image_token_index": "[IMG]"},
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )


def make_tiny_qwen_vl(directory: Path, *, kind: str = "Qwen2VL", window: int = 56, depth: int = 2) -> Path:
    """Make a Qwen2-VL, Qwen2.5-VL, Qwen3-VL or Qwen3.5 that sees squares of 28 pixels, in rows and columns.

    Qwen3VLMoe has experts in two of three layers. Qwen3.5 keeps a state in two of three, and adds no deeper features.
    """
    is_hybrid = kind.startswith(("Qwen3_5", "Qwen4"))
    is_third = kind.startswith("Qwen3VL") or is_hybrid
    sections = {"mrope_section": [2, 1, 1], "mrope_interleaved": True} if is_third else {"mrope_section": [1, 1, 2]}
    text = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, **sections}}
    text |= {"head_dim": 8, "num_hidden_layers": 3} if is_third else {}
    if kind == "Qwen3VLMoe":
        text |= {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "mlp_only_layers": [1]}
    if is_hybrid:
        text |= {name: value for name, value in GATED_DELTA.items() if name.startswith("linear_")}
        text |= {"head_dim": 16, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
        text["rope_parameters"] |= {"partial_rotary_factor": 0.5}
        text["rope_parameters"].pop("mrope_interleaved")  # its positions always are
    if kind == "Qwen3_5Moe":
        text |= EXPERTS
    if kind == "Qwen4Exp":  # a vocabulary for whose numbers the hash of n-grams is exact
        text = QWEN4 | text | {"vocab_size": 1024, "layer_types": ["linear_attention", "indexed_attention"] * 2}
        text |= {"num_hidden_layers": 4, "indexer_n_heads": 12}  # of few, no head may see anything in two blocks
    vision: dict[str, Any] = {"depth": depth, "num_heads": 2, "patch_size": PATCH, "spatial_merge_size": 2}
    if kind == "Qwen2VL":
        vision |= {"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2}
    else:
        vision |= {"hidden_size": 16, "intermediate_size": 32, "out_hidden_size": 32}
    vision |= {"num_position_embeddings": 16} if is_third else {}
    vision |= {"deepstack_visual_indexes": [0, 1]} if is_third and not is_hybrid else {}
    vision |= {"window_size": window, "fullatt_block_indexes": list(range(1, depth, 2))} if kind == "Qwen2_5_VL" else {}
    _make(
        directory,
        kind,
        [*_QWEN_TOKENS, "<|video_pad|>"],
        _QWEN_IMAGE,
        _QWEN_PROCESSOR,
        vision_config=vision,
        text_config=text,
        ids={
            "image_token_id": "<|image_pad|>",
            "video_token_id": "<|video_pad|>",
            "vision_start_token_id": "<|vision_start|>",
            "vision_end_token_id": "<|vision_end|>",
        },
    )
    _write_video_processor(directory, frames=40 if is_third else 6)
    if kind == "Qwen3VLMoe":
        _transpose_experts(directory / "model.safetensors")
    return directory


def _write_video_processor(directory: Path, frames: int) -> Path:
    """Write how a video is seen: ``frames`` squares of all its frames, or of one."""
    settings = {"size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * frames}}
    (directory / "video_preprocessor_config.json").write_text(json.dumps(settings))
    return directory


def _transpose_experts(file: Path) -> None:
    """Lay experts out as published: [experts, in, out]; ``transformers`` writes [experts, out, in] and reads both."""
    from safetensors.torch import load_file, save_file

    tensors = {
        name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor
        for name, tensor in load_file(file).items()
    }
    save_file(tensors, file, metadata={"format": "pt"})


def _rename(directory: Path, names: Mapping[str, str]) -> None:
    """Give tensors the beginnings of names they are published with, as ``transformers`` reads but does not write."""
    from safetensors.torch import load_file, save_file

    def renamed(name: str) -> str:
        begin = next((begin for begin in names if name.startswith(begin)), "")
        return names.get(begin, "") + name.removeprefix(begin)

    file = directory / "model.safetensors"
    save_file({renamed(name): tensor for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})


def make_tiny_glm4v(directory: Path, *, kind: str = "Glm4v") -> Path:
    """Make a GLM-4.1V or GLM-OCR that sees squares of 28 pixels, in rows and columns, and rotates half of each head.

    Glm4vMoe has experts in the second of its layers.
    """
    image, video = [[f"<|begin_of_{what}|>", f"<|{what}|>", f"<|end_of_{what}|>"] for what in ("image", "video")]
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 2, 1]}
    experts = {
        "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.5, "head_dim": 16,
        "attention_bias": True,
    }  # fmt: skip
    text = {**TEXT, "hidden_size": 64, "rope_parameters": rope} | (experts if kind == "Glm4vMoe" else {})
    text |= {"head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1} if kind == "GlmOcr" else {}
    size = {"shortest_edge": 2 * 28 * 28, "longest_edge": 2 * 28 * 28 * 12}
    _make(
        directory, kind, [image[1], image[0], image[2], video[1], video[0], video[2]], "".join(image),
        ("Glm4v", {"patch_size": PATCH, "merge_size": 2, "size": size}),
        vision_config={
            "depth": 2, "hidden_size": 32, "num_heads": 2, "image_size": 56, "patch_size": PATCH,
            "out_hidden_size": 64, "intermediate_size": 48, "spatial_merge_size": 2, "initializer_range": 0.3,
        },
        text_config=text,
        ids={
            f"{what}_{part}token_id": token
            for what, tokens in (("image", image), ("video", video))
            for part, token in zip(("start_", "", "end_"), tokens, strict=True)
        },
    )  # fmt: skip
    _write_video_processor(directory, frames=40)
    return directory


def make_tiny_paddleocr_vl(directory: Path) -> Path:
    """Make a PaddleOCR-VL that sees squares of 28 pixels, in rows and columns, in its published layout."""
    token, start, end = tokens = ["<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>"]
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    _make(
        directory,
        "PaddleOCRVL",
        tokens,
        f"{start}{token}{end}",
        ("PaddleOCRVL", {"size": _SQUARES}),
        vision_config={**_VISION, "image_size": 56},
        text_config={**TEXT, "head_dim": 8, "use_bias": True, "rope_parameters": rope},
        ids={"image_token_id": token, "vision_start_token_id": start, "vision_end_token_id": end},
    )
    _rename(directory, {"model.language_model.": "model.", "model.projector.": "mlp_AR.", "model.visual.": "visual."})
    written = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(
        json.dumps(written | written.pop("text_config") | {"model_type": "paddleocr_vl"})
    )
    return directory


def make_tiny_lighton_ocr(directory: Path) -> Path:
    """Make a LightOnOCR that sees squares of 28 pixels as a row."""
    return _make(
        directory,
        "LightOnOcr",
        ["<|image_pad|>"],
        "<|image_pad|>",
        _pixtral(112, 28),
        vision_config={"model_type": "pixtral", **_VISION, "image_size": 112, "head_dim": 8},
        text_config={"model_type": "qwen3", **TEXT, "head_dim": 16},
        ids={"image_token_id": "<|image_pad|>"},
    )


def make_tiny_got_ocr(directory: Path) -> Path:
    """Make a GOT-OCR 2.0: 4 tokens an image of any size."""
    return _make(
        directory,
        "GotOcr2",
        ["<imgpad>", "<img>", "</img>"],
        "<img><imgpad></img>\n",
        ("GotOcr2", {"size": {"height": 32, "width": 32}}),
        vision_config={**_SAM, "image_size": 32, "output_channels": 4, "mlp_dim": 32},
        text_config={"model_type": "qwen2", **TEXT},
        ids={"image_token_index": "<imgpad>"},
    )


def make_tiny_deepseek_ocr(directory: Path, *, side: int = 96, width: int = 16) -> Path:
    """Make a DeepSeek-OCR 2 with tiles of 96 pixels, 144 tokens each; ``side`` is that of the whole."""
    std = 1.2 / width**0.5
    sam = {"hidden_size": width, "patch_size": 2, "image_size": side, "output_channels": 4, "initializer_range": std}
    text = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1}
    text |= {"mlp_layer_types": ["dense", "sparse"], "routed_scaling_factor": 1.5, "max_position_embeddings": 1024}
    return _make(
        directory, "DeepseekOcr2", ["<image>"], "<image>\n",
        ("DeepseekOcr2", {"size": {"height": side, "width": side}, "tile_size": 96}),
        vision_config={
            "sam_config": {**_SAM, **sam, "downsample_channels": [8, width]},
            "encoder_config": {
                "hidden_size": width, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                "num_key_value_heads": 1, "initializer_range": std,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            },
        },
        text_config={**TEXT, **text},
        ids={"image_token_id": "<image>"},
    )  # fmt: skip


def make_tiny_aya_vision(directory: Path) -> Path:
    """Make an Aya Vision with tiles of 28 pixels, one row each."""
    return _make(
        directory,
        "AyaVision",
        _AYA_TOKENS,
        "<image>",
        ("GotOcr2", {"size": SQUARE, "max_patches": 6}),
        vision_config={"model_type": "siglip_vision_model", "vision_use_head": False, **_VISION},
        text_config=_COHERE2,
        ids={"image_token_index": "<|IMG_PATCH|>"},
        tie_word_embeddings=True,
    )


def make_tiny_command_a_vision(directory: Path) -> Path:
    """Make a Command A Vision with up to six tiles of 28 pixels, one row each."""
    return _make(
        directory,
        "Cohere2Vision",
        [*_AYA_TOKENS, "<|IMG_LINE_BREAK|>"],
        "<|IMG_PATCH|>",
        {"size": SQUARE, "max_patches": MAX_TILES},
        vision_config={"model_type": "siglip_vision_model", "vision_use_head": False, **_VISION},
        text_config=_COHERE2,
        ids={"image_token_id": "<|IMG_PATCH|>"},
        alignment_intermediate_size=32,
        tie_word_embeddings=True,
    )


def make_tiny_ovis2(directory: Path) -> Path:
    """Make an Ovis 2 with tiles of 28 pixels, one row each."""
    tags = ["<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"]
    return _make(
        directory,
        "Ovis2",
        ["<IMG_ATOM>", *tags],
        "<image>\n",
        ("Ovis2", {"size": SQUARE, "crop_to_patches": True, "max_patches": 6}),
        vision_config={**_VISION, "vocab_size": 40, "hidden_stride": 2},
        text_config={"model_type": "qwen2", **TEXT},
        ids={"image_token_id": "<IMG_ATOM>"},
        visual_indicator_token_ids=list(range(259, 259 + len(tags))),
        vocab_size=TEXT["vocab_size"],
        hidden_size=TEXT["hidden_size"],
    )


def make_tiny_minicpmv_4_6(directory: Path) -> Path:
    """Make a MiniCPM-V 4.6 whose views have about 784 pixels."""
    tokens = ["<|image_pad|>", "<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>"]
    text = {**TEXT, **{name: value for name, value in GATED_DELTA.items() if name.startswith("linear_")}}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
    text |= {"head_dim": 16, "layer_types": ["linear_attention", "full_attention"], "rope_parameters": rope}
    return _make(
        directory,
        "MiniCPMV4_6",
        tokens,
        "<|image_pad|>\n",
        ("MiniCPMV4_6", {"scale_resolution": 56, "patch_size": 7, "max_slice_nums": 4}),
        vision_config={**_VISION, "patch_size": 7},
        text_config={"model_type": "qwen3_5_text", **text},
        ids={"image_token_id": "<|image_pad|>"},
        insert_layer_id=0,
    )


def make_tiny_lfm2_vl(directory: Path) -> Path:
    """Make an LFM2-VL whose images have 4 to 12 rows, or tiles of 16 pixels, 4 rows each."""
    tags = [f"<|img_row_{row}_col_{column}|>" for row in range(1, 7) for column in range(1, 6 // row + 1)]
    tokens = ["<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", *tags]
    limits = {"max_tiles": 6, "min_image_tokens": 4, "max_image_tokens": 12}
    return _make(
        directory,
        "Lfm2Vl",
        tokens,
        "<image>",
        {"encoder_patch_size": 4, "tile_size": 16, **limits},
        vision_config={"model_type": "siglip2_vision_model", **_ANY_SIZE, "patch_size": 4, "num_patches": 16},
        text_config={"model_type": "lfm2", **TEXT, "layer_types": ["conv", "full_attention"]},
        ids={"image_token_id": "<image>"},
        projector_hidden_size=24,
    )


def make_tiny_lfm3_vl(directory: Path) -> Path:
    """Make an LFM3-VL that sees squares of 28 pixels, in rows and columns."""
    layers = ["conv", "sliding_attention", "full_attention"]
    text = {**TEXT, "num_hidden_layers": 3, "layer_types": layers, "head_dim": 16, "sliding_window": 16}
    _make(
        directory,
        "Lfm3Vl",
        [*_QWEN_TOKENS, "<|video_pad|>"],
        _QWEN_IMAGE,
        _QWEN_PROCESSOR,
        vision_config={**_ANY_SIZE, "num_hidden_layers": 3, "num_key_value_heads": 1, "spatial_merge_size": 2},
        text_config={"model_type": "lfm3", **text},
        ids={"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"},
        projector_hidden_size=24,
    )
    return _write_video_processor(directory, frames=40)


def make_tiny_exaone4_5(directory: Path) -> Path:
    """Make an EXAONE 4.5 that sees squares of 28 pixels, in rows and columns."""
    text = {**TEXT, "head_dim": 16, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    _make(
        directory, "Exaone4_5_", [*_QWEN_TOKENS, "<|video_pad|>"], _QWEN_IMAGE, _QWEN_PROCESSOR,
        vision_config={
            "hidden_size": 16, "intermediate_size": 32, "depth": 2, "num_heads": 2, "num_key_value_heads": 1,
            "patch_size": PATCH, "spatial_merge_size": 2, "out_hidden_size": 32, "window_size": 56,
            "fullatt_block_indexes": [1], "initializer_range": 0.3,
        },
        text_config={"model_type": "exaone4", **text},
        ids={"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"},
    )  # fmt: skip
    return _write_video_processor(directory, frames=6)


def make_tiny_minimax_m3(directory: Path) -> Path:
    """Make a MiniMax-M3 that sees squares of 28 pixels, in rows and columns."""
    from tests.support.expert_models import MODELS

    tokens = ["]<]image[>[", "]<]start of image[>[", "]<]end of image[>["]
    return _make(
        directory,
        "MiniMaxM3VL",
        tokens,
        tokens[0],
        {"size": _SQUARES},
        vision_config={**_VISION, "spatial_merge_size": 2, "hidden_size": 24},
        text_config={**TEXT, **MODELS["MiniMax-M3"][1]},
        ids={"image_token_index": tokens[0]},
        model="MiniMaxM3SparseForConditionalGeneration",
        projector_hidden_size=24,
    )


def make_tiny_qianfan_ocr(directory: Path) -> Path:
    """Make a Qianfan-OCR with tiles of 28 pixels, one row each."""
    _make(
        directory,
        "QianfanOCR",
        ["<IMG_CONTEXT>", "<img>", "</img>"],
        "<image>\n",
        ("GotOcr2", {"size": SQUARE, "max_patches": 6}),
        vision_config={**_VISION, **_INTERNVL_SIZES},
        text_config={"model_type": "qwen3", **TEXT, "head_dim": 16},
        ids={"image_token_id": "<IMG_CONTEXT>"},
        image_seq_length=1,
    )
    _rename(directory, {"language_model.model.encoder.layers.": "language_model.model.layers."})
    return directory


def make_tiny_granite_docling(directory: Path, *, fine: bool = False) -> Path:
    """Make a Granite Docling with tiles of 28 pixels, one row each, or four on the fine route."""
    factors = {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2}
    route = {"scale_factor": 2, "out_hidden_size": 32, "use_fine_route": fine, "deepstack_visual_indexes": [0]}
    return _make(
        directory,
        "GraniteDocling",
        _IDEFICS3_TOKENS,
        "<image>",
        ("GraniteDocling", {"size": SQUARE, "fine_route": fine}),
        vision_config={**_VISION, **route},
        text_config={**TEXT, **factors},
        ids={"image_token_id": "<image>"},
        pad_token_id=257,
    )


def make_tiny_kimi(directory: Path) -> Path:
    """Make a Kimi K2.5 that sees squares of 28 pixels, at most 48 patches in all and 12 on a side."""
    from tests.support.expert_models import DEEPSEEK, TWO_GROUPS

    tokens = ["<|media_pad|>", "<|media_begin|>", "<|media_content|>", "<|media_end|>"]
    _make(
        directory,
        "Kimi_K25",
        tokens,
        "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>",
        {"media_proc_cfg": {"in_patch_limit": 48, "patch_limit_on_one_side": 12, "patch_size": PATCH}},
        vision_config={**_ANY_SIZE, "pos_emb_height": 6, "pos_emb_width": 6},
        text_config={"model_type": "deepseek_v3", **TEXT, **DEEPSEEK, **TWO_GROUPS},
        projection_hidden_size=16,
        ids={"image_token_id": "<|media_pad|>"},
    )
    names = {"language_model.model.blocks.": "language_model.model.layers.", "model.mm_projector.": "mm_projector."}
    _rename(directory, names | {"vision_tower.encoder.patch_embed.": "vision_tower.patch_embed."})
    return directory


def make_tiny_gemma3(directory: Path, *, window: int = 16, layers: int = 2) -> Path:
    """Make a Gemma 3 whose images are 16 tokens; all layers but the last look back ``window`` tokens."""
    token, start, end = tokens = ["<image_soft_token>", "<start_of_image>", "<end_of_image>"]
    text = {"head_dim": 16, "sliding_window": window, "query_pre_attn_scalar": 16, "num_hidden_layers": layers}
    return _make(
        directory,
        "Gemma3",
        tokens,
        start,
        ("Gemma3", {"size": {"height": 56, "width": 56}}),
        vision_config={"model_type": "siglip_vision_model", **_VISION, "image_size": 56, "vision_use_head": False},
        text_config={**TEXT, **text, "layer_types": [*["sliding_attention"] * (layers - 1), "full_attention"]},
        ids={"image_token_index": token, "image_token_id": token, "boi_token_index": start, "eoi_token_index": end},
        mm_tokens_per_image=GEMMA3_ROWS,
    )


def make_tiny_gemma4(directory: Path, *, kind: str = "E2B") -> Path:
    """Make a Gemma 4 whose images have up to 70 tokens; those of ``31B`` and ``26B`` see each other in windows."""
    from tests.support.layered_models import MODELS

    token, start, end, video = tokens = ["<|image|>", "<|image>", "<image|>", "<|video|>"]
    patches = {"patch_size": 4, "pooling_kernel_size": 2}
    vision = {**_ANY_SIZE, "head_dim": 8, "num_key_value_heads": 2, **patches, "position_embedding_size": 160}
    return _make(
        directory,
        "Gemma4",
        tokens,
        token,
        ("Gemma4", {**patches, "max_soft_tokens": 70}),
        vision_config={**vision, "standardize": kind != "E2B"},
        text_config={
            **{name: value for name, value in TEXT.items() if name != "tie_word_embeddings"},
            **MODELS[f"Gemma 4 {kind}"][1],
            "vocab_size_per_layer_input": TEXT["vocab_size"],
            "use_bidirectional_attention": None if kind == "E2B" else "vision",
        },
        audio_config=None,
        ids={"image_token_id": token, "boi_token_id": start, "eoi_token_id": end, "video_token_id": video},
        vision_soft_tokens_per_image=70,
        tie_word_embeddings=True,
    )


def make_tiny_llama4(directory: Path) -> Path:
    """Make a Llama 4 that sees up to six tiles of 28 pixels, of 4 rows each."""
    from tests.support.expert_models import LLAMA4

    tokens = ["<|patch|>", "<|image|>", "<|image_start|>", "<|image_end|>"]
    widths = {"projector_input_dim": 40, "projector_output_dim": 40, "vision_output_dim": 40}
    return _make(
        directory,
        "Llama4",
        [*tokens, "<|tile_x_separator|>", "<|tile_y_separator|>"],
        "<|image|>",
        {"size": SQUARE, "max_patches": MAX_TILES},
        vision_config={**_VISION, "patch_size": 7, "intermediate_size": 64, **widths},
        text_config={**TEXT, **LLAMA4, "interleave_moe_layer_step": 2},
        ids={"image_token_id": "<|patch|>", "boi_token_id": "<|image_start|>", "eoi_token_id": "<|image_end|>"},
    )


def save_random(model_class: Any, config: Any, directory: Path, seed: int = 0) -> Path:
    """Write a model with random weights, of which none is at a value where it cannot be seen."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config).float()
        for name, parameter in model.named_parameters():
            if parameter.dim() <= 1:
                mean = float(parameter.detach().mean()) if "norm" in name else 0.0
                torch.nn.init.normal_(parameter, mean=mean, std=0.3)
            elif not bool(parameter.detach().any()):
                torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(directory)
    return directory


def write_tokenizer(directory: Path, special: Sequence[str], template: str) -> None:
    """Write a tokenizer of all bytes, an end, a beginning, and special tokens from number 258 on."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(sorted(letters))}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>", *special)])
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    whole.chat_template = template
    whole.save_pretrained(directory)


def token_id(directory: Path, text: str) -> int:
    """Return the number of a special token of the tokenizer in a directory."""
    content = json.loads((directory / "tokenizer.json").read_text())
    return next(int(token["id"]) for token in content["added_tokens"] if token["content"] == text)
