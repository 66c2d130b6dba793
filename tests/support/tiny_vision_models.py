"""Tiny random checkpoints of vision-language models, with tokenizer and image processor, made by ``transformers``."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.support.hybrid_models import EXPERTS, GATED_DELTA

IMAGE_SIDE = 28
PATCH = 14
GEMMA3_ROWS = 16  # of an image
MAX_TILES = 6  # of Llama 4 and Command A Vision
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


def make_tiny_llava(
    directory: Path, *, seed: int = 0, text: str = "llama", token: str = "<image>", pads: bool = False
) -> Path:
    """Make a LLaVA 1.5 with a CLIP tower: 4 tokens an image of any size; its middle, or all of it padded."""
    from transformers import (
        CLIPImageProcessorPil,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaImageProcessorPil,
    )

    write_tokenizer(directory, [token], TEMPLATE.replace("IMAGE", token))
    config = LlavaConfig(
        vision_config={"model_type": "clip_vision_model", "projection_dim": 16, **_VISION},
        text_config={"model_type": text, **TEXT},
        image_token_index=token_id(directory, token),
        tie_word_embeddings=False,
    )
    sizes = {"size": {"shortest_edge": IMAGE_SIDE}, "crop_size": {"height": IMAGE_SIDE, "width": IMAGE_SIDE}}
    processor = LlavaImageProcessorPil(do_pad=True, **sizes) if pads else CLIPImageProcessorPil(**sizes)
    processor.save_pretrained(directory)
    return save_random(LlavaForConditionalGeneration, config, directory, seed)


def make_tiny_llava_next(directory: Path, *, seed: int = 0, text: str = "mistral", token: str = "<image>") -> Path:
    """Make a LLaVA 1.6 with a CLIP tower and tiles of 28 pixels."""
    from transformers import LlavaNextConfig, LlavaNextForConditionalGeneration, LlavaNextImageProcessorPil

    write_tokenizer(directory, [token], TEMPLATE.replace("IMAGE", token))
    grids = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]
    config = LlavaNextConfig(
        vision_config={"model_type": "clip_vision_model", "projection_dim": 16, **_VISION},
        text_config={"model_type": text, **TEXT} | ({"sliding_window": None} if text == "mistral" else {}),
        image_token_index=token_id(directory, token),
        image_grid_pinpoints=grids,
        tie_word_embeddings=False,
    )
    sides = {"height": IMAGE_SIDE, "width": IMAGE_SIDE}
    LlavaNextImageProcessorPil(
        size={"shortest_edge": IMAGE_SIDE}, crop_size=sides, image_grid_pinpoints=grids
    ).save_pretrained(directory)
    return save_random(LlavaNextForConditionalGeneration, config, directory, seed)


def make_tiny_llava_onevision(directory: Path, *, seed: int = 0) -> Path:
    """Make a LLaVA-OneVision with a SigLIP tower and tiles of 28 pixels, shrunk to about two of them."""
    from transformers import (
        LlavaOnevisionConfig,
        LlavaOnevisionForConditionalGeneration,
        LlavaOnevisionImageProcessorPil,
    )

    write_tokenizer(directory, ["<image>", "<video>"], TEMPLATE.replace("IMAGE", "<image>"))
    grids = [[28 * rows, 28 * columns] for rows in range(1, 4) for columns in range(1, 4)]
    config = LlavaOnevisionConfig(
        vision_config={"model_type": "siglip_vision_model", "vision_use_head": False, **_VISION},
        text_config={"model_type": "qwen2", **TEXT},
        image_token_index=token_id(directory, "<image>"),
        video_token_index=token_id(directory, "<video>"),
        image_grid_pinpoints=grids,
        vision_aspect_ratio="anyres_max_2",
        tie_word_embeddings=False,
    )
    sides = {"height": IMAGE_SIDE, "width": IMAGE_SIDE}
    LlavaOnevisionImageProcessorPil(size=sides, image_grid_pinpoints=grids).save_pretrained(directory)
    return save_random(LlavaOnevisionForConditionalGeneration, config, directory, seed)


def make_tiny_pixtral(directory: Path, *, seed: int = 0) -> Path:
    """Make a Pixtral that sees squares of 14 pixels as a row."""
    from transformers import LlavaConfig, LlavaForConditionalGeneration, PixtralImageProcessorPil

    write_tokenizer(directory, ["[IMG]", "[IMG_BREAK]", "[IMG_END]"], TEMPLATE.replace("IMAGE\n", "[IMG]"))
    config = LlavaConfig(
        vision_config={"model_type": "pixtral", **_VISION, "image_size": 70, "head_dim": 8},
        text_config={"model_type": "mistral", **TEXT, "sliding_window": None},
        image_token_index=token_id(directory, "[IMG]"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=False,
    )
    PixtralImageProcessorPil(size={"longest_edge": 70}, patch_size={"height": PATCH, "width": PATCH}).save_pretrained(
        directory
    )
    return save_random(LlavaForConditionalGeneration, config, directory, seed)


def make_tiny_deepseek_vl(
    directory: Path, *, seed: int = 0, vision: Mapping[str, Any] = MappingProxyType({}), **pixels: Any
) -> Path:
    """Make a DeepSeek-VL with a SigLIP tower: 4 tokens an image of any size."""
    from transformers import DeepseekVLConfig, DeepseekVLForConditionalGeneration, DeepseekVLImageProcessorPil

    write_tokenizer(directory, ["<image_placeholder>"], TEMPLATE.replace("IMAGE\n", "<image_placeholder>"))
    config = DeepseekVLConfig(
        vision_config={"model_type": "siglip_vision_model", **_VISION, **vision},
        text_config={"model_type": "llama", **TEXT},
        image_token_id=token_id(directory, "<image_placeholder>"),
        tie_word_embeddings=False,
    )
    sides = {"height": IMAGE_SIDE, "width": IMAGE_SIDE}
    DeepseekVLImageProcessorPil(size=sides, **pixels).save_pretrained(directory)
    return save_random(DeepseekVLForConditionalGeneration, config, directory, seed)


def make_tiny_deepseek_vl_hybrid(
    directory: Path,
    *,
    seed: int = 0,
    vision: Mapping[str, Any] = MappingProxyType({}),
    large_vision: Mapping[str, Any] = MappingProxyType({}),
    **pixels: Any,
) -> Path:
    """Make the DeepSeek-VL that sees an image in two sizes: 4 tokens each."""
    from transformers import (
        DeepseekVLHybridConfig,
        DeepseekVLHybridForConditionalGeneration,
        DeepseekVLHybridImageProcessorPil,
    )

    write_tokenizer(directory, ["<image_placeholder>"], TEMPLATE.replace("IMAGE\n", "<image_placeholder>"))
    sides, large = {"height": IMAGE_SIDE, "width": IMAGE_SIDE}, {"height": 64, "width": 64}
    config = DeepseekVLHybridConfig(
        vision_config={"model_type": "siglip_vision_model", **_VISION, **vision},
        high_res_vision_config={
            **_VISION, "image_size": 64, "patch_size": 8, "output_channels": 4, "window_size": 4, "mlp_dim": 32,
            "global_attn_indexes": [0, 1], **large_vision,
        },
        text_config={"model_type": "llama", **TEXT},
        image_token_id=token_id(directory, "<image_placeholder>"),
        tie_word_embeddings=False,
    )  # fmt: skip
    DeepseekVLHybridImageProcessorPil(size=sides, high_res_size=large, **pixels).save_pretrained(directory)
    return save_random(DeepseekVLHybridForConditionalGeneration, config, directory, seed)


def make_tiny_internvl(
    directory: Path,
    *,
    seed: int = 0,
    text: str = "qwen2",
    rope_theta: float = 1e4,
    depth: int = 2,
    vision: Mapping[str, Any] = MappingProxyType({}),
    **pixels: Any,
) -> Path:
    """Make an InternVL with tiles of 28 pixels, one row each."""
    from transformers import GotOcr2ImageProcessorPil, InternVLConfig, InternVLForConditionalGeneration

    write_tokenizer(directory, ["<IMG_CONTEXT>", "<img>", "</img>"], TEMPLATE.replace("IMAGE", "<IMG_CONTEXT>"))
    sides = [IMAGE_SIDE, IMAGE_SIDE]
    config = InternVLConfig(
        vision_config={
            **_VISION,
            "image_size": sides,
            "patch_size": [PATCH, PATCH],
            "attention_bias": True,
            "num_hidden_layers": depth,
            **vision,
        },
        text_config={
            "model_type": text,
            "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
            **TEXT,
            **_INTERNVL_EXPERTS.get(text, {}),
        },
        image_token_id=token_id(directory, "<IMG_CONTEXT>"),
        image_seq_length=1,
        tie_word_embeddings=False,
    )
    size = {"height": IMAGE_SIDE, "width": IMAGE_SIDE}
    GotOcr2ImageProcessorPil(size=size, max_patches=6, **pixels).save_pretrained(directory)
    return save_random(InternVLForConditionalGeneration, config, directory, seed)


def make_tiny_idefics3(directory: Path, *, seed: int = 0, kind: str = "Idefics3") -> Path:
    """Make an Idefics 3, or a SmolVLM, with tiles of 28 pixels, one row each."""
    import transformers

    tags = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    special = ["<image>", "<fake_token_around_image>", "<global-img>", *tags]
    write_tokenizer(directory, special, TEMPLATE.replace("IMAGE\n", "<image>"))
    config = getattr(transformers, f"{kind}Config")(
        vision_config={"model_type": f"{kind.lower()}_vision", **_VISION},
        text_config={"model_type": "llama", **TEXT},
        image_token_id=token_id(directory, "<image>"),
        scale_factor=2,
        pad_token_id=257,
        tie_word_embeddings=False,
    )
    processor = getattr(transformers, f"{kind}ImageProcessorPil")
    processor(size={"longest_edge": 84}, max_image_size={"longest_edge": IMAGE_SIDE}).save_pretrained(directory)
    return save_random(getattr(transformers, f"{kind}ForConditionalGeneration"), config, directory, seed)


def make_tiny_mistral3(directory: Path, *, text: dict[str, Any] | None = None, seed: int = 0, depth: int = 2) -> Path:
    """Make a Mistral 3 that sees squares of 28 pixels as a row; ``text`` are fields of its text part."""
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration, PixtralImageProcessorPil

    write_tokenizer(directory, ["[IMG]", "[IMG_BREAK]", "[IMG_END]"], TEMPLATE.replace("IMAGE\n", "[IMG]"))
    config = Mistral3Config(
        vision_config={
            "model_type": "pixtral",
            **_VISION,
            "image_size": 112,
            "head_dim": 8,
            "num_hidden_layers": depth,
        },
        text_config={"model_type": "mistral", **TEXT, "sliding_window": None} | (text or {}),
        image_token_index=token_id(directory, "[IMG]"),
        spatial_merge_size=2,
        vision_feature_layer=-1,
        tie_word_embeddings=False,
    )
    PixtralImageProcessorPil(size={"longest_edge": 112}, patch_size={"height": PATCH, "width": PATCH}).save_pretrained(
        directory
    )
    return save_random(Mistral3ForConditionalGeneration, config, directory, seed)


def make_tiny_qwen_vl(
    directory: Path, *, seed: int = 0, kind: str = "Qwen2VL", window: int = 56, depth: int = 2
) -> Path:
    """Make a Qwen2-VL, Qwen2.5-VL, Qwen3-VL or Qwen3.5 that sees squares of 28 pixels, in rows and columns.

    Qwen3VLMoe has experts in two of three layers. Qwen3.5 keeps a state in two of three, and adds no deeper features.
    """
    import transformers

    tokens = ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>"]
    write_tokenizer(directory, tokens, TEMPLATE.replace("IMAGE\n", "<|vision_start|><|image_pad|><|vision_end|>"))
    is_hybrid = kind.startswith("Qwen3_5")
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
    vision: dict[str, Any] = {"depth": depth, "num_heads": 2, "patch_size": PATCH, "spatial_merge_size": 2}
    if kind == "Qwen2VL":
        vision |= {"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2}
    else:
        vision |= {"hidden_size": 16, "intermediate_size": 32, "out_hidden_size": 32}
    vision |= {"num_position_embeddings": 16} if is_third else {}
    vision |= {"deepstack_visual_indexes": [0, 1]} if is_third and not is_hybrid else {}
    vision |= {"window_size": window, "fullatt_block_indexes": list(range(1, depth, 2))} if kind == "Qwen2_5_VL" else {}
    config = getattr(transformers, f"{kind}Config")(
        vision_config=vision,
        text_config=text,
        image_token_id=token_id(directory, "<|image_pad|>"),
        video_token_id=token_id(directory, "<|video_pad|>"),
        vision_start_token_id=token_id(directory, "<|vision_start|>"),
        vision_end_token_id=token_id(directory, "<|vision_end|>"),
        tie_word_embeddings=False,
    )
    transformers.Qwen2VLImageProcessorPil(
        patch_size=PATCH, merge_size=2, size={"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 12}
    ).save_pretrained(directory)
    max_pixels = 28 * 28 * (40 if is_third else 6)  # of all frames, or of one
    settings = {"size": {"shortest_edge": 28 * 28, "longest_edge": max_pixels}}
    (directory / "video_preprocessor_config.json").write_text(json.dumps(settings))
    save_random(getattr(transformers, f"{kind}ForConditionalGeneration"), config, directory, seed)
    if kind == "Qwen3VLMoe":
        _transpose_experts(directory / "model.safetensors")
    return directory


def _transpose_experts(file: Path) -> None:
    """Lay experts out as published: [experts, in, out]; ``transformers`` writes [experts, out, in] and reads both."""
    from safetensors.torch import load_file, save_file

    tensors = {
        name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor
        for name, tensor in load_file(file).items()
    }
    save_file(tensors, file, metadata={"format": "pt"})


def _rename(file: Path, names: Mapping[str, str]) -> None:
    """Give tensors the beginnings of names that they are published with."""
    from safetensors.torch import load_file, save_file

    def renamed(name: str) -> str:
        begin = next((begin for begin in names if name.startswith(begin)), "")
        return names.get(begin, "") + name.removeprefix(begin)

    save_file({renamed(name): tensor for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})


def make_tiny_glm4v(directory: Path, *, seed: int = 0, kind: str = "Glm4v") -> Path:
    """Make a GLM-4.1V or GLM-OCR that sees squares of 28 pixels, in rows and columns, and rotates half of each head.

    Glm4vMoe has experts in the second of its layers.
    """
    import transformers

    tokens = ["<|image|>", "<|begin_of_image|>", "<|end_of_image|>", "<|video|>"]
    tokens += ["<|begin_of_video|>", "<|end_of_video|>"]
    write_tokenizer(directory, tokens, TEMPLATE.replace("IMAGE\n", "<|begin_of_image|><|image|><|end_of_image|>"))
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 2, 1]}
    experts = {
        "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.5, "head_dim": 16,
        "attention_bias": True,
    }  # fmt: skip
    text = {**TEXT, "hidden_size": 64, "rope_parameters": rope} | (experts if kind == "Glm4vMoe" else {})
    text |= {"head_dim": 16, "num_attention_heads": 2, "num_key_value_heads": 1} if kind == "GlmOcr" else {}
    config = getattr(transformers, f"{kind}Config")(
        vision_config={
            "depth": 2, "hidden_size": 32, "num_heads": 2, "image_size": 56, "patch_size": PATCH,
            "out_hidden_size": 64, "intermediate_size": 48, "spatial_merge_size": 2, "initializer_range": 0.3,
        },
        text_config=text,
        image_token_id=token_id(directory, "<|image|>"),
        image_start_token_id=token_id(directory, "<|begin_of_image|>"),
        image_end_token_id=token_id(directory, "<|end_of_image|>"),
        video_token_id=token_id(directory, "<|video|>"),
        video_start_token_id=token_id(directory, "<|begin_of_video|>"),
        video_end_token_id=token_id(directory, "<|end_of_video|>"),
        tie_word_embeddings=False,
    )  # fmt: skip
    settings = {"size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 40}}
    (directory / "video_preprocessor_config.json").write_text(json.dumps(settings))
    transformers.Glm4vImageProcessorPil(
        patch_size=PATCH, merge_size=2, size={"shortest_edge": 2 * 28 * 28, "longest_edge": 2 * 28 * 28 * 12}
    ).save_pretrained(directory)
    return save_random(getattr(transformers, f"{kind}ForConditionalGeneration"), config, directory, seed)


def make_tiny_paddleocr_vl(directory: Path, *, seed: int = 0) -> Path:
    """Make a PaddleOCR-VL that sees squares of 28 pixels, in rows and columns, in its published layout."""
    from transformers import PaddleOCRVLConfig, PaddleOCRVLForConditionalGeneration, PaddleOCRVLImageProcessorPil

    tokens = ["<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>"]
    write_tokenizer(directory, tokens, TEMPLATE.replace("IMAGE\n", "".join(tokens[i] for i in (1, 0, 2))))
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    config = PaddleOCRVLConfig(
        vision_config={**_VISION, "image_size": 56},
        text_config={**TEXT, "head_dim": 8, "use_bias": True, "rope_parameters": rope},
        image_token_id=token_id(directory, tokens[0]),
        vision_start_token_id=token_id(directory, tokens[1]),
        vision_end_token_id=token_id(directory, tokens[2]),
        tie_word_embeddings=False,
    )
    size = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 12}
    PaddleOCRVLImageProcessorPil(size=size).save_pretrained(directory)
    save_random(PaddleOCRVLForConditionalGeneration, config, directory, seed)
    names = {"model.language_model.": "model.", "model.projector.": "mlp_AR.", "model.visual.": "visual."}
    _rename(directory / "model.safetensors", names)
    written = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(
        json.dumps(written | written.pop("text_config") | {"model_type": "paddleocr_vl"})
    )
    return directory


def make_tiny_lighton_ocr(directory: Path, *, seed: int = 0) -> Path:
    """Make a LightOnOCR that sees squares of 28 pixels as a row."""
    from transformers import LightOnOcrConfig, LightOnOcrForConditionalGeneration, PixtralImageProcessorPil

    write_tokenizer(directory, ["<|image_pad|>"], TEMPLATE.replace("IMAGE\n", "<|image_pad|>"))
    config = LightOnOcrConfig(
        vision_config={"model_type": "pixtral", **_VISION, "image_size": 112, "head_dim": 8},
        text_config={"model_type": "qwen3", **TEXT, "head_dim": 16},
        image_token_id=token_id(directory, "<|image_pad|>"),
        tie_word_embeddings=False,
    )
    PixtralImageProcessorPil(size={"longest_edge": 112}, patch_size={"height": 28, "width": 28}).save_pretrained(
        directory
    )
    return save_random(LightOnOcrForConditionalGeneration, config, directory, seed)


def make_tiny_got_ocr(directory: Path, *, seed: int = 0) -> Path:
    """Make a GOT-OCR 2.0: 4 tokens an image of any size."""
    from transformers import GotOcr2Config, GotOcr2ForConditionalGeneration, GotOcr2ImageProcessorPil

    tokens = ["<imgpad>", "<img>", "</img>"]
    write_tokenizer(directory, tokens, TEMPLATE.replace("IMAGE", "<img><imgpad></img>"))
    config = GotOcr2Config(
        vision_config={**_SAM, "image_size": 32, "output_channels": 4, "mlp_dim": 32},
        text_config={"model_type": "qwen2", **TEXT},
        image_token_index=token_id(directory, "<imgpad>"),
        tie_word_embeddings=False,
    )
    GotOcr2ImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(directory)
    return save_random(GotOcr2ForConditionalGeneration, config, directory, seed)


def make_tiny_deepseek_ocr(directory: Path, *, seed: int = 0, side: int = 96, width: int = 16) -> Path:
    """Make a DeepSeek-OCR 2 with tiles of 96 pixels, 144 tokens each; ``side`` is that of the whole."""
    from transformers import DeepseekOcr2Config, DeepseekOcr2ForConditionalGeneration, DeepseekOcr2ImageProcessorPil

    write_tokenizer(directory, ["<image>"], TEMPLATE.replace("IMAGE", "<image>"))
    std = 1.2 / width**0.5
    sam = {"hidden_size": width, "patch_size": 2, "image_size": side, "output_channels": 4, "initializer_range": std}
    text = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1}
    text |= {"mlp_layer_types": ["dense", "sparse"], "routed_scaling_factor": 1.5, "max_position_embeddings": 1024}
    config = DeepseekOcr2Config(
        vision_config={
            "sam_config": {**_SAM, **sam, "downsample_channels": [8, width]},
            "encoder_config": {
                "hidden_size": width, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                "num_key_value_heads": 1, "initializer_range": std,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
            },
        },
        text_config={**TEXT, **text},
        image_token_id=token_id(directory, "<image>"),
        tie_word_embeddings=False,
    )  # fmt: skip
    DeepseekOcr2ImageProcessorPil(size={"height": side, "width": side}, tile_size=96).save_pretrained(directory)
    return save_random(DeepseekOcr2ForConditionalGeneration, config, directory, seed)


def make_tiny_aya_vision(directory: Path, *, seed: int = 0) -> Path:
    """Make an Aya Vision with tiles of 28 pixels, one row each."""
    from transformers import AyaVisionConfig, AyaVisionForConditionalGeneration, GotOcr2ImageProcessorPil

    tokens = ["<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>"]
    write_tokenizer(directory, tokens, TEMPLATE.replace("IMAGE\n", "<image>"))
    # The class of `transformers` leaves out Cohere2's scale of logits.
    config = AyaVisionConfig(
        vision_config={"model_type": "siglip_vision_model", "vision_use_head": False, **_VISION},
        text_config={"model_type": "cohere2", **TEXT, "sliding_window": 16, "logit_scale": 1.0},
        image_token_index=token_id(directory, "<|IMG_PATCH|>"),
        tie_word_embeddings=True,
    )
    size = {"height": IMAGE_SIDE, "width": IMAGE_SIDE}
    GotOcr2ImageProcessorPil(size=size, max_patches=6).save_pretrained(directory)
    return save_random(AyaVisionForConditionalGeneration, config, directory, seed)


def make_tiny_command_a_vision(directory: Path, *, seed: int = 0) -> Path:
    """Make a Command A Vision with up to six tiles of 28 pixels, one row each."""
    from transformers import Cohere2VisionConfig, Cohere2VisionForConditionalGeneration

    tokens = ["<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_LINE_BREAK|>"]
    write_tokenizer(directory, tokens, TEMPLATE.replace("IMAGE\n", "<|IMG_PATCH|>"))
    config = Cohere2VisionConfig(
        vision_config={"model_type": "siglip_vision_model", "vision_use_head": False, **_VISION},
        text_config={"model_type": "cohere2", **TEXT, "sliding_window": 16, "logit_scale": 1.0},  # as Aya Vision's
        image_token_id=token_id(directory, "<|IMG_PATCH|>"),
        alignment_intermediate_size=32,
        tie_word_embeddings=True,
    )
    settings = {"size": {"height": IMAGE_SIDE, "width": IMAGE_SIDE}, "max_patches": MAX_TILES}
    (directory / "preprocessor_config.json").write_text(json.dumps(settings))
    return save_random(Cohere2VisionForConditionalGeneration, config, directory, seed)


def make_tiny_ovis2(directory: Path, *, seed: int = 0) -> Path:
    """Make an Ovis 2 with tiles of 28 pixels, one row each."""
    from transformers import Ovis2Config, Ovis2ForConditionalGeneration, Ovis2ImageProcessorPil

    tags = ["<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"]
    write_tokenizer(directory, ["<IMG_ATOM>", *tags], TEMPLATE.replace("IMAGE", "<image>"))
    config = Ovis2Config(
        vision_config={**_VISION, "vocab_size": 40, "hidden_stride": 2},
        text_config={"model_type": "qwen2", **TEXT},
        image_token_id=token_id(directory, "<IMG_ATOM>"),
        visual_indicator_token_ids=[token_id(directory, tag) for tag in tags],
        vocab_size=TEXT["vocab_size"],
        hidden_size=TEXT["hidden_size"],
        tie_word_embeddings=False,
    )
    size = {"height": IMAGE_SIDE, "width": IMAGE_SIDE}
    Ovis2ImageProcessorPil(size=size, crop_to_patches=True, max_patches=6).save_pretrained(directory)
    return save_random(Ovis2ForConditionalGeneration, config, directory, seed)


def make_tiny_minicpmv_4_6(directory: Path, *, seed: int = 0) -> Path:
    """Make a MiniCPM-V 4.6 whose views have about 784 pixels."""
    from transformers import MiniCPMV4_6Config, MiniCPMV4_6ForConditionalGeneration, MiniCPMV4_6ImageProcessorPil

    tokens = ["<|image_pad|>", "<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>"]
    write_tokenizer(directory, tokens, TEMPLATE.replace("IMAGE", "<|image_pad|>"))
    text = {**TEXT, **{name: value for name, value in GATED_DELTA.items() if name.startswith("linear_")}}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
    text |= {"head_dim": 16, "layer_types": ["linear_attention", "full_attention"], "rope_parameters": rope}
    config = MiniCPMV4_6Config(
        vision_config={**_VISION, "patch_size": 7},
        text_config={"model_type": "qwen3_5_text", **text},
        insert_layer_id=0,
        image_token_id=token_id(directory, "<|image_pad|>"),
        tie_word_embeddings=False,
    )
    MiniCPMV4_6ImageProcessorPil(scale_resolution=56, patch_size=7, max_slice_nums=4).save_pretrained(directory)
    return save_random(MiniCPMV4_6ForConditionalGeneration, config, directory, seed)


def make_tiny_lfm2_vl(directory: Path, *, seed: int = 0) -> Path:
    """Make an LFM2-VL whose images have 4 to 12 rows, or tiles of 16 pixels, 4 rows each."""
    from transformers import Lfm2VlConfig, Lfm2VlForConditionalGeneration

    tags = [f"<|img_row_{row}_col_{column}|>" for row in range(1, 7) for column in range(1, 6 // row + 1)]
    tokens = ["<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>", *tags]
    write_tokenizer(directory, tokens, TEMPLATE.replace("IMAGE\n", "<image>"))
    vision = {name: value for name, value in _VISION.items() if name != "image_size"}
    config = Lfm2VlConfig(
        vision_config={"model_type": "siglip2_vision_model", **vision, "patch_size": 4, "num_patches": 16},
        text_config={"model_type": "lfm2", **TEXT, "layer_types": ["conv", "full_attention"]},
        image_token_id=token_id(directory, "<image>"),
        projector_hidden_size=24,
        tie_word_embeddings=False,
    )
    settings = {
        "encoder_patch_size": 4, "tile_size": 16, "max_tiles": 6, "min_image_tokens": 4, "max_image_tokens": 12,
    }  # fmt: skip
    (directory / "preprocessor_config.json").write_text(json.dumps(settings))
    return save_random(Lfm2VlForConditionalGeneration, config, directory, seed)


def make_tiny_lfm3_vl(directory: Path, *, seed: int = 0) -> Path:
    """Make an LFM3-VL that sees squares of 28 pixels, in rows and columns."""
    from transformers import Lfm3VlConfig, Lfm3VlForConditionalGeneration

    _write_qwen_processor(directory)
    layers = ["conv", "sliding_attention", "full_attention"]
    text = {**TEXT, "num_hidden_layers": 3, "layer_types": layers, "head_dim": 16, "sliding_window": 16}
    config = Lfm3VlConfig(
        vision_config={
            "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2,
            "num_key_value_heads": 1, "patch_size": PATCH, "spatial_merge_size": 2, "initializer_range": 0.3,
        },
        text_config={"model_type": "lfm3", **text},
        image_token_id=token_id(directory, "<|image_pad|>"),
        projector_hidden_size=24,
        tie_word_embeddings=False,
    )  # fmt: skip
    return save_random(Lfm3VlForConditionalGeneration, config, directory, seed)


def make_tiny_exaone4_5(directory: Path, *, seed: int = 0) -> Path:
    """Make an EXAONE 4.5 that sees squares of 28 pixels, in rows and columns."""
    from transformers import Exaone4_5_Config, Exaone4_5_ForConditionalGeneration

    _write_qwen_processor(directory)
    text = {**TEXT, "head_dim": 16, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    config = Exaone4_5_Config(
        vision_config={
            "hidden_size": 16, "intermediate_size": 32, "depth": 2, "num_heads": 2, "num_key_value_heads": 1,
            "patch_size": PATCH, "spatial_merge_size": 2, "out_hidden_size": 32, "window_size": 56,
            "fullatt_block_indexes": [1], "initializer_range": 0.3,
        },
        text_config={"model_type": "exaone4", **text},
        image_token_id=token_id(directory, "<|image_pad|>"),
        tie_word_embeddings=False,
    )  # fmt: skip
    return save_random(Exaone4_5_ForConditionalGeneration, config, directory, seed)


def make_tiny_minimax_m3(directory: Path, *, seed: int = 0) -> Path:
    """Make a MiniMax-M3 that sees squares of 28 pixels, in rows and columns."""
    from transformers import MiniMaxM3SparseForConditionalGeneration, MiniMaxM3VLConfig

    from tests.support.expert_models import MODELS

    tokens = ["]<]image[>[", "]<]start of image[>[", "]<]end of image[>["]
    write_tokenizer(directory, tokens, TEMPLATE.replace("IMAGE\n", tokens[0]))
    vision = {**_VISION, "spatial_merge_size": 2, "hidden_size": 24, "num_hidden_layers": 2}
    config = MiniMaxM3VLConfig(
        vision_config=vision,
        text_config={**TEXT, **MODELS["MiniMax-M3"][1]},
        image_token_index=token_id(directory, tokens[0]),
        projector_hidden_size=24,
        tie_word_embeddings=False,
    )
    settings = {"size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 12}}
    (directory / "preprocessor_config.json").write_text(json.dumps(settings))
    return save_random(MiniMaxM3SparseForConditionalGeneration, config, directory, seed)


def _write_qwen_processor(directory: Path) -> None:
    """Write tokenizer and image processor of a model that sees images as Qwen2-VL."""
    from transformers import Qwen2VLImageProcessorPil

    tokens = ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>"]
    write_tokenizer(directory, tokens, TEMPLATE.replace("IMAGE\n", "<|vision_start|><|image_pad|><|vision_end|>"))
    size = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 12}
    Qwen2VLImageProcessorPil(patch_size=PATCH, merge_size=2, size=size).save_pretrained(directory)


def make_tiny_qianfan_ocr(directory: Path, *, seed: int = 0) -> Path:
    """Make a Qianfan-OCR with tiles of 28 pixels, one row each."""
    from transformers import GotOcr2ImageProcessorPil, QianfanOCRConfig, QianfanOCRForConditionalGeneration

    write_tokenizer(directory, ["<IMG_CONTEXT>", "<img>", "</img>"], TEMPLATE.replace("IMAGE", "<image>"))
    config = QianfanOCRConfig(
        vision_config={**_VISION, "image_size": [IMAGE_SIDE] * 2, "patch_size": [PATCH] * 2, "attention_bias": True},
        text_config={"model_type": "qwen3", **TEXT, "head_dim": 16},
        image_token_id=token_id(directory, "<IMG_CONTEXT>"),
        image_seq_length=1,
        tie_word_embeddings=False,
    )
    size = {"height": IMAGE_SIDE, "width": IMAGE_SIDE}
    GotOcr2ImageProcessorPil(size=size, max_patches=6).save_pretrained(directory)
    save_random(QianfanOCRForConditionalGeneration, config, directory, seed)
    # `transformers` does not write these names as it reads them.
    _rename(directory / "model.safetensors", {"language_model.model.encoder.layers.": "language_model.model.layers."})
    return directory


def make_tiny_granite_docling(directory: Path, *, seed: int = 0, fine: bool = False) -> Path:
    """Make a Granite Docling with tiles of 28 pixels, one row each, or four on the fine route."""
    from transformers import (
        GraniteDoclingConfig,
        GraniteDoclingForConditionalGeneration,
        GraniteDoclingImageProcessorPil,
    )

    tags = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    special = ["<image>", "<fake_token_around_image>", "<global-img>", *tags]
    write_tokenizer(directory, special, TEMPLATE.replace("IMAGE\n", "<image>"))
    factors = {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2}
    config = GraniteDoclingConfig(
        vision_config={
            **_VISION, "scale_factor": 2, "out_hidden_size": 32, "use_fine_route": fine,
            "deepstack_visual_indexes": [0],
        },
        text_config={**TEXT, **factors},
        image_token_id=token_id(directory, "<image>"),
        pad_token_id=257,
        tie_word_embeddings=False,
    )  # fmt: skip
    GraniteDoclingImageProcessorPil(size={"height": IMAGE_SIDE, "width": IMAGE_SIDE}, fine_route=fine).save_pretrained(
        directory
    )
    return save_random(GraniteDoclingForConditionalGeneration, config, directory, seed)


def make_tiny_kimi(directory: Path, *, seed: int = 0) -> Path:
    """Make a Kimi K2.5 that sees squares of 28 pixels, at most 48 patches in all and 12 on a side."""
    from transformers import Kimi_K25Config, Kimi_K25ForConditionalGeneration

    from tests.support.expert_models import DEEPSEEK, TWO_GROUPS

    tokens = ["<|media_pad|>", "<|media_begin|>", "<|media_content|>", "<|media_end|>"]
    written = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
    write_tokenizer(directory, tokens, TEMPLATE.replace("IMAGE\n", written))
    vision = {name: value for name, value in _VISION.items() if name != "image_size"}
    config = Kimi_K25Config(
        vision_config={**vision, "pos_emb_height": 6, "pos_emb_width": 6},
        text_config={"model_type": "deepseek_v3", **TEXT, **DEEPSEEK, **TWO_GROUPS},
        projection_hidden_size=16,
        image_token_id=token_id(directory, "<|media_pad|>"),
        tie_word_embeddings=False,
    )
    settings = {"media_proc_cfg": {"in_patch_limit": 48, "patch_limit_on_one_side": 12, "patch_size": PATCH}}
    (directory / "preprocessor_config.json").write_text(json.dumps(settings))
    save_random(Kimi_K25ForConditionalGeneration, config, directory, seed)
    # `transformers` does not write these names as it reads them.
    names = {"language_model.model.blocks.": "language_model.model.layers.", "model.mm_projector.": "mm_projector."}
    _rename(directory / "model.safetensors", names | {"vision_tower.encoder.patch_embed.": "vision_tower.patch_embed."})
    return directory


def make_tiny_gemma3(directory: Path, *, seed: int = 0, window: int = 16, layers: int = 2) -> Path:
    """Make a Gemma 3 whose images are 16 tokens; all layers but the last look back ``window`` tokens."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3ImageProcessorPil

    tokens = ["<image_soft_token>", "<start_of_image>", "<end_of_image>"]
    write_tokenizer(directory, tokens, TEMPLATE.replace("IMAGE\n", "<start_of_image>"))
    text = {"head_dim": 16, "sliding_window": window, "query_pre_attn_scalar": 16}
    config = Gemma3Config(
        vision_config={"model_type": "siglip_vision_model", **_VISION, "image_size": 56, "vision_use_head": False},
        text_config={
            **TEXT,
            **text,
            "num_hidden_layers": layers,
            "layer_types": [*["sliding_attention"] * (layers - 1), "full_attention"],
        },
        image_token_index=token_id(directory, "<image_soft_token>"),
        image_token_id=token_id(directory, "<image_soft_token>"),
        boi_token_index=token_id(directory, "<start_of_image>"),
        eoi_token_index=token_id(directory, "<end_of_image>"),
        mm_tokens_per_image=GEMMA3_ROWS,
        tie_word_embeddings=False,
    )
    Gemma3ImageProcessorPil(size={"height": 56, "width": 56}).save_pretrained(directory)
    return save_random(Gemma3ForConditionalGeneration, config, directory, seed)


def make_tiny_gemma4(directory: Path, *, seed: int = 0, kind: str = "E2B") -> Path:
    """Make a Gemma 4 whose images have up to 70 tokens; those of ``31B`` and ``26B`` see each other in windows."""
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration, Gemma4ImageProcessorPil

    from tests.support.layered_models import MODELS

    tokens = ["<|image|>", "<|image>", "<image|>"]
    write_tokenizer(directory, tokens, TEMPLATE.replace("IMAGE\n", "<|image|>"))
    vision = {name: value for name, value in _VISION.items() if name != "image_size"}
    vision |= {"head_dim": 8, "num_key_value_heads": 2, "patch_size": 4, "pooling_kernel_size": 2}
    config = Gemma4Config(
        vision_config={**vision, "position_embedding_size": 160, "standardize": kind != "E2B"},
        text_config={
            **{name: value for name, value in TEXT.items() if name != "tie_word_embeddings"},
            **MODELS[f"Gemma 4 {kind}"][1],
            "vocab_size_per_layer_input": TEXT["vocab_size"],
            "use_bidirectional_attention": None if kind == "E2B" else "vision",
        },
        audio_config=None,
        image_token_id=token_id(directory, "<|image|>"),
        boi_token_id=token_id(directory, "<|image>"),
        eoi_token_id=token_id(directory, "<image|>"),
        vision_soft_tokens_per_image=70,
    )
    Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=2, max_soft_tokens=70).save_pretrained(directory)
    return save_random(Gemma4ForConditionalGeneration, config, directory, seed)


def make_tiny_llama4(directory: Path, *, seed: int = 0) -> Path:
    """Make a Llama 4 that sees up to six tiles of 28 pixels, of 4 rows each."""
    from transformers import Llama4Config, Llama4ForConditionalGeneration

    from tests.support.expert_models import LLAMA4

    tokens = ["<|patch|>", "<|image|>", "<|image_start|>", "<|image_end|>"]
    tokens += ["<|tile_x_separator|>", "<|tile_y_separator|>"]
    write_tokenizer(directory, tokens, TEMPLATE.replace("IMAGE\n", "<|image|>"))
    vision = {**_VISION, "patch_size": 7, "intermediate_size": 64}
    vision |= {"projector_input_dim": 40, "projector_output_dim": 40, "vision_output_dim": 40}
    config = Llama4Config(
        vision_config=vision,
        text_config={**TEXT, **LLAMA4, "interleave_moe_layer_step": 2},
        image_token_id=token_id(directory, "<|patch|>"),
        boi_token_id=token_id(directory, "<|image_start|>"),
        eoi_token_id=token_id(directory, "<|image_end|>"),
        tie_word_embeddings=False,
    )
    settings = {"size": {"height": IMAGE_SIDE, "width": IMAGE_SIDE}, "max_patches": MAX_TILES}
    (directory / "preprocessor_config.json").write_text(json.dumps(settings))
    return save_random(Llama4ForConditionalGeneration, config, directory, seed)


def save_random(model_class: Any, config: Any, directory: Path, seed: int) -> Path:
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
