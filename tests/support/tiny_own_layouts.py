"""Tiny vision-language models in their authors' own layout, each alongside the same model as `transformers` has it."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import CLIPVisionModel
from transformers.image_utils import PILImageResampling

from tests.support import published
from tests.support import tiny_vision_models as tiny

# Fields of a config's `to_dict` of an older `transformers` beside the model's own.
_DUMPED = {
    "_name_or_path": "", "add_cross_attention": False, "attn_implementation": "flash_attention_2", "bad_words_ids": [],
    "chunk_size_feed_forward": 0, "do_sample": False, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "is_decoder": False,
    "max_length": 20, "num_beams": 1, "output_attentions": False, "pruned_heads": {}, "return_dict": True, "top_k": 50,
    "torch_dtype": "bfloat16", "torchscript": False, "transformers_version": "4.37.2", "use_bfloat16": True,
}  # fmt: skip


def native_of(directory: Path) -> Path:
    """Return the same model as `transformers` has it."""
    return directory.with_name("native")


def make_tiny_internvl_chat(
    directory: Path, *, text: str = "qwen2", normed: bool = False, patch: int = tiny.PATCH
) -> Path:
    """Make an InternVL in OpenGVLab's layout, with queries and keys normed in the tower if asked for."""
    native = tiny.make_tiny_internvl(
        native_of(directory),
        text="llama" if text == "internlm2" else text,
        rope_theta=1e6 if text == "internlm2" else 1e4,
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
        vision={"patch_size": [patch, patch]}
        | ({"use_qk_norm": True, "norm_type": "rms_norm", "attention_bias": False} if normed else {}),
    )
    tensors = load_file(native / "model.safetensors")
    config = json.loads((native / "config.json").read_text())
    decoder, decoder_config = _text_alone(directory, tensors, config["text_config"], text)
    vision = config["vision_config"]
    fields = {
        "architectures": ["InternVLChatModel"],
        "model_type": "internvl_chat",
        "auto_map": {"AutoModel": "modeling_internvl_chat.InternVLChatModel"},
        "llm_config": _DUMPED | decoder_config,
        "vision_config": {
            **{name: vision[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads")},
            **{name: vision[name] for name in ("num_hidden_layers", "hidden_act", "layer_norm_eps", "norm_type")},
            "model_type": "intern_vit_6b",
            "image_size": vision["image_size"][0],
            "patch_size": vision["patch_size"][0],
            "qk_normalization": vision["use_qk_norm"],
            "qkv_bias": vision["attention_bias"],
        },
        "downsample_ratio": 0.5,
        "dynamic_image_size": True,
        "force_image_size": vision["image_size"][0],
        "max_dynamic_patch": 6,
        "min_dynamic_patch": 1,
        "ps_version": "v2",
        "select_layer": -1,
        "template": "internvl2_5",
        "use_thumbnail": True,
    }
    tower = {name: values for name, values in tensors.items() if not name.startswith("language_model.")}
    for layer in range(vision["num_hidden_layers"]):
        block = f"vision_tower.encoder.layer.{layer}.attention."
        for kind in ("weight", "bias") if vision["attention_bias"] else ("weight",):
            parts = [tower.pop(f"{block}{part}_proj.{kind}") for part in "qkv"]
            tower[f"{block}qkv.{kind}"] = torch.cat(parts)
    names = {
        r"vision_tower\.encoder\.layer": "vision_model.encoder.layers",
        r"vision_tower": "vision_model",
        r"cls_token": "class_embedding",
        r"patch_embeddings\.projection": "patch_embedding",
        r"position_embeddings": "position_embedding",
        r"lambda_": "ls",
        r"attention\.projection_layer": "attn.proj",
        r"attention\.": "attn.",
        r"layernorm_before": "norm1",
        r"layernorm_after": "norm2",
        r"multi_modal_projector\.layer_norm": "mlp1.0",
        r"multi_modal_projector\.linear_1": "mlp1.1",
        r"multi_modal_projector\.linear_2": "mlp1.3",
    }
    decoder = {f"language_model.{name}": values for name, values in decoder.items()}
    return _write(directory, native, fields, _renamed(tower, names) | decoder)


def make_tiny_llava_original(
    directory: Path, *, kind: str = "llama", tiles: bool = False, normed: bool = False
) -> Path:
    """Make a LLaVA in its authors' layout: 1.6 with tiles, else 1.5 or Yi-VL, whose tower is in a folder next to it."""
    native = native_of(directory)
    if tiles:
        tiny.make_tiny_llava_next(native, token="<unk>", text=kind)
    else:
        tiny.make_tiny_llava(native, token="<unk>", text=kind, pads=True)
    tensors = load_file(native / "model.safetensors")
    config = json.loads((native / "config.json").read_text())
    prefix = "vision_tower."
    tower = {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}
    folder = directory.with_name("clip")
    _write_tower(folder, native, tower)
    text = {name: value for name, value in config["text_config"].items() if name not in ("architectures", "dtype")}
    fields = text | {
        "architectures": ["LlavaMistralForCausalLM" if kind == "mistral" else "LlavaLlamaForCausalLM"],
        "model_type": "llava_mistral" if kind == "mistral" else "llava",
        "image_aspect_ratio": "anyres" if tiles else "pad",
        "mm_hidden_size": 16,
        "mm_patch_merge_type": "spatial_unpad" if tiles else "flat",
        "mm_projector_type": "mlp2x_gelu_Norm" if normed else "mlp2x_gelu",
        "mm_use_im_patch_token": False,
        "mm_use_im_start_end": False,
        "mm_vision_select_feature": "patch",
        "mm_vision_select_layer": -2,
        "mm_vision_tower": str(folder),
    }
    if tiles:
        fields["image_grid_pinpoints"] = [[width, height] for height, width in config["image_grid_pinpoints"]]
    kept = {name: values for name, values in tensors.items() if not name.startswith(prefix)}
    if tiles:
        vision = load_file(folder / "model.safetensors")
        kept |= {f"model.vision_tower.vision_tower.{name}": values for name, values in vision.items()}
        (folder / "model.safetensors").unlink()  # only the sizes are read there
    names = {
        r"^language_model\.": "",
        r"^multi_modal_projector\.linear_1": "model.mm_projector.0",
        r"^multi_modal_projector\.linear_2": f"model.mm_projector.{3 if normed else 2}",
        r"^image_newline": "model.image_newline",
    }
    if normed:
        random = torch.Generator().manual_seed(3)
        for index in (1, 4):
            for part, middle in (("weight", 1.0), ("bias", 0.0)):
                noise = torch.randn(config["text_config"]["hidden_size"], generator=random)
                kept[f"model.mm_projector.{index}.{part}"] = middle + 0.3 * noise
    return _write(directory, native, fields, _renamed(kept, names))


def make_tiny_deepseek_vl_original(directory: Path, *, has_two: bool = False) -> Path:
    """Make a DeepSeek-VL in its authors' layout, with one tower as the 1.3B or two as the 7B."""
    vision = {"hidden_size": 64, "num_attention_heads": 1, "hidden_act": "gelu", "vision_use_head": False}
    processor: dict[str, Any] = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
    large = {"image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28]}
    if has_two:
        native = tiny.make_tiny_deepseek_vl_hybrid(
            native_of(directory),
            vision=vision,
            large_vision={"hidden_size": 64, "num_attention_heads": 1, "global_attn_indexes": [1]},
            high_res_image_mean=large["image_mean"],
            high_res_image_std=large["image_std"],
            resample=PILImageResampling.BILINEAR,
            **processor,
        )
    else:
        native = tiny.make_tiny_deepseek_vl(native_of(directory), vision=vision, **processor)
    tensors = load_file(native / "model.safetensors")
    config = json.loads((native / "config.json").read_text())
    low = "vision_model.vision_tower_low.vision_tower." if has_two else "vision_model.vision_tower."
    high = "vision_model.vision_tower_high.vision_tower."
    side = config["high_res_vision_config" if has_two else "vision_config"]["image_size"]
    low_config = {"model_name": "siglip_large_patch16_384", "image_size": config["vision_config"]["image_size"]}
    low_config |= {"pixel_mean": processor["image_mean"], "pixel_std": processor["image_std"]} if has_two else {}
    params = {"high_res_cfg": {"model_name": "sam_b_downsample", "image_size": side}, "low_res_cfg": low_config}
    fields = {
        "architectures": ["MultiModalityCausalLM"],
        "model_type": "multi_modality",
        "language_config": config["text_config"],
        "vision_config": {
            "cls": "HybridVisionTower" if has_two else "CLIPVisionTower",
            "params": params if has_two else low_config,
        },
    }
    for layer in range(config["vision_config"]["num_hidden_layers"]):
        block = f"model.vision_model.encoder.layers.{layer}.self_attn."
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"{block}{part}_proj.{kind}") for part in "qkv"]
            tensors[f"{block}qkv.{kind}"] = torch.cat(parts)
    name = "model.vision_model.embeddings.position_embedding.weight"
    tensors[name] = tensors[name][None]
    names = {
        r"^model\.vision_model\.embeddings\.position_embedding\.weight": f"{low}pos_embed",
        r"^model\.vision_model\.embeddings\.patch_embedding": f"{low}patch_embed.proj",
        r"^model\.vision_model\.encoder\.layers": f"{low}blocks",
        r"^model\.vision_model\.post_layernorm": f"{low}norm",
        r"self_attn\.out_proj": "attn.proj",
        r"self_attn\.qkv": "attn.qkv",
        r"(blocks\.\d+|layers\.\d+)\.layer_norm": r"\1.norm",
        r"^model\.high_res_vision_model\.vision_encoder\.layers": f"{high}blocks",
        r"^model\.high_res_vision_model\.vision_encoder\.patch_embed\.projection": f"{high}patch_embed.proj",
        r"^model\.high_res_vision_model\.vision_encoder\.": high,
        r"^model\.high_res_vision_neck\.": f"{high}neck_hd.",
        r"^model\.high_res_vision_proj\.conv1": f"{high}downsamples.0",
        r"^model\.high_res_vision_proj\.conv2": f"{high}downsamples.1",
        r"^model\.high_res_vision_alpha": f"{high}hd_alpha_downsamples",
        r"(neck|neck_hd)\.conv1": r"\1.0",
        r"(neck|neck_hd)\.layer_norm1": r"\1.1",
        r"(neck|neck_hd)\.conv2": r"\1.2",
        r"(neck|neck_hd)\.layer_norm2": r"\1.3",
        r"^model\.aligner\.linear1": "aligner.layers.0",
        r"^model\.aligner\.linear2": "aligner.layers.2",
        r"^model\.aligner\.proj": "aligner.layers.1",
        r"^model\.aligner\.vision_proj": "aligner.low_up_proj",
        r"^model\.aligner\.high_res_vision_proj": "aligner.high_up_proj",
        r"^model\.language_model": "language_model.model",
        r"^lm_head": "language_model.lm_head",
    }
    _write(directory, native, fields, _renamed(tensors, names))
    settings = {"image_processor_type": "VLMImageProcessor", "image_size": side, "min_size": 14}
    settings |= large if has_two else processor
    (directory / "preprocessor_config.json").write_text(json.dumps(settings))
    return directory


def make_tiny_deepseek_ocr_published(directory: Path) -> Path:
    """Make a DeepSeek-OCR 2 in its authors' layout."""
    native = tiny.make_tiny_deepseek_ocr(native_of(directory), side=128, width=128)
    text = json.loads((native / "config.json").read_text())["text_config"]
    text = {name: value for name, value in text.items() if name not in ("mlp_layer_types", "model_type")}
    text |= {"architectures": ["DeepseekV2ForCausalLM"], "first_k_dense_replace": 1, "use_mla": False}
    fields = {
        "architectures": ["DeepseekOCR2ForCausalLM"],
        "model_type": "deepseek_vl_v2",
        "language_config": text,
        "vision_config": {"image_size": 128},
        "hidden_size": text["hidden_size"],
    }
    return _write(directory, native, fields, load_file(native / "model.safetensors"))


def _text_alone(
    directory: Path, tensors: Mapping[str, torch.Tensor], config: dict[str, Any], kind: str
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return tensors and config of the text part, rewritten as its own authors publish it."""
    prefix = "language_model."
    alone = {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}
    names = {"qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM", "internlm2": "LlamaForCausalLM"}
    config = config | {"architectures": [names[kind]]}
    folder = directory.with_name("decoder")
    folder.mkdir()
    save_file(alone, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    if kind == "internlm2":
        published.internlm2(folder)
    return load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())


def _write_tower(folder: Path, native: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a CLIP as it is published: with its config, and names that begin with `vision_model`."""
    config = json.loads((native / "config.json").read_text())["vision_config"]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [CLIPVisionModel.__name__]}))
    named = {f"vision_model.{name.removeprefix('vision_model.')}": values for name, values in tensors.items()}
    save_file(named, folder / "model.safetensors", {"format": "pt"})


def _renamed(tensors: Mapping[str, torch.Tensor], names: Mapping[str, str]) -> dict[str, torch.Tensor]:
    result = {}
    for name, values in tensors.items():
        for pattern, new in names.items():
            name = re.sub(pattern, new, name)
        result[name] = values.contiguous()
    return result


def _write(directory: Path, native: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    directory.mkdir()
    for file in native.glob("*token*"):
        shutil.copyfile(file, directory / file.name)
    for file in native.glob("chat_template*"):
        shutil.copyfile(file, directory / file.name)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    return directory
