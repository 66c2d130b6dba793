"""Vision towers in GGUF files: ``mmproj*.gguf`` alongside a model's file makes it a vision-language model.

How they are written: llama.cpp, ``convert_hf_to_gguf.py --mmproj``. A file names its projector, by which it is known
what model this is; the model's own file is the one of its text part.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmdeploy.turbomind.gguf.header import GgufHeader, read_header
from lmdeploy.turbomind.gguf.parts import towers_beside

logger = logging.getLogger(__name__)

LINK = "mmproj.gguf"  # the tower's file in the directory that is made for a model
_KEY = "clip.vision."
_LAYER = re.compile(r"v\.blk\.(\d+)\.(\w+)\.(weight|bias)")
_SWAPPED = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
_KEPT = ("model_format", "gguf_architecture", "gguf_rope_factors")  # of the text part's config, for the whole one
Published = str | tuple[str, int]
# GGUF's names within a layer of the tower, and published ones; of several for one tensor, which part of it each is.
_SIGLIP: dict[str, Published] = {
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_QWEN: dict[str, Published] = {
    "ln1": "norm1",
    "ln2": "norm2",
    "attn_q": ("attn.qkv", 0),
    "attn_k": ("attn.qkv", 1),
    "attn_v": ("attn.qkv", 2),
    "attn_out": "attn.proj",
}
_INTERNVL: dict[str, Published] = {
    "ln1": "layernorm_before",
    "ln2": "layernorm_after",
    "ls1.weight": "lambda_1",
    "ls2.weight": "lambda_2",
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_q_norm": "attention.q_norm",
    "attn_k_norm": "attention.k_norm",
    "attn_out": "attention.projection_layer",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_PIXTRAL: dict[str, Published] = {
    "ln1": "attention_norm",
    "ln2": "ffn_norm",
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_out": "attention.o_proj",
    "ffn_gate": "feed_forward.gate_proj",
    "ffn_up": "feed_forward.up_proj",
    "ffn_down": "feed_forward.down_proj",
}
_QWEN_OUTSIDE: dict[str, Published] = {
    "v.patch_embd.weight": ("visual.patch_embed.proj.weight", 0),
    "v.patch_embd.weight.1": ("visual.patch_embed.proj.weight", 1),
    "v.post_ln": "visual.merger.ln_q",
    "mm.0": "visual.merger.mlp.0",
    "mm.2": "visual.merger.mlp.2",
}


def _siglip_outside(prefix: str) -> dict[str, Published]:
    return {
        "v.patch_embd": f"{prefix}embeddings.patch_embedding",
        "v.position_embd": f"{prefix}embeddings.position_embedding",
        "v.post_ln": f"{prefix}post_layernorm",
    }


@dataclass(frozen=True)
class Tower:
    """Files of one kind of projector."""

    # Of the whole model in a Hugging Face config
    architecture: str
    model_type: str
    texts: tuple[str, ...]  # GGUF's architectures that its text part may have
    text_type: str  # the text part's ``model_type`` in the whole config; empty: its own
    layer: str  # beginning of the published names of a layer's tensors; ``{}`` is its number
    # GGUF's names within a layer, with or without ``.weight`` and ``.bias``, and published ones
    parts: Mapping[str, Published]
    # GGUF's names elsewhere, with or without ``.weight`` and ``.bias``, and published ones
    outside: Mapping[str, Published]
    # From a file and the numbers of tokens, by text, to fields of the whole config, with ``vision_config``
    config: Callable[["TowerFile", Mapping[str, int]], dict[str, Any]]
    # From a file's metadata to its image processor's settings, without mean and deviation
    processor: Callable[[Mapping[str, Any]], dict[str, Any]]
    token: str = ""  # what an image's rows take the place of, if the text part's file may lack it
    # Offset of a tensor's numbers in GGUF, by published name
    added: Mapping[str, float] = field(default_factory=dict)
    # Rows of queries and keys are in pairs that turn together, ``2 i`` and ``2 i + 1`` of a head
    is_turned: bool = False


@dataclass(frozen=True)
class TowerFile:
    """A vision tower's file and its header."""

    path: Path
    header: GgufHeader
    tower: Tower

    def get(self, key: str, default: Any = None) -> Any:
        """Return a number of the tower; ``KeyError`` where it is missing and there is no default."""
        found = self.header.metadata.get(_KEY + key, default)
        if found is None:
            raise KeyError(_KEY + key)
        return found

    def rows(self, name: str) -> int:
        """Return the outputs of a matrix."""
        return self.header.tensors[name].shape[0]

    def published(self, name: str) -> tuple[str, int] | None:
        """Return the published name of a tensor, and which part of it this is; None: the model does not read it."""
        stem, _, suffix = name.rpartition(".")
        if found := self.tower.outside.get(name):
            return found if isinstance(found, tuple) else (found, 0)
        begin, layer = "", _LAYER.fullmatch(name)
        if layer is None:
            found = self.tower.outside.get(stem)
        else:
            begin = self.tower.layer.format(layer[1])
            part = _SWAPPED.get(layer[2], layer[2]) if self.is_swapped else layer[2]
            if isinstance(whole := self.tower.parts.get(f"{part}.{suffix}"), str):
                return begin + whole, 0
            found = self.tower.parts.get(part)
        if found is None:
            return None
        template, index = found if isinstance(found, tuple) else (found, 0)
        return f"{begin}{template}.{suffix}", index

    def turned_heads(self, name: str) -> int:
        """Return the heads of a matrix whose rows are in pairs that turn together; 0: of another one."""
        layer = _LAYER.fullmatch(name)
        is_turned = self.tower.is_turned and layer is not None and layer[2] in {"attn_q", "attn_k"}
        return int(self.get("attention.head_count")) if is_turned else 0

    @property
    def is_swapped(self) -> bool:
        """Whether the matrices of an MLP have each other's names, as in older files."""
        up = self.header.tensors.get("v.blk.0.ffn_up.weight")
        return up is not None and up.shape[0] == self.get("embedding_length") != up.shape[1]

    def config_with(self, text: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
        """Return config.json of the vision-language model, whose text part has the config ``text``.

        Raises `KeyError` if a token or a number is missing.
        """
        numbers = {token: number for number, token in reversed(list(enumerate(tokens)))}
        whole = {name: text[name] for name in _KEPT if name in text} | self.tower.config(self, numbers)
        return whole | {
            "architectures": [self.tower.architecture],
            "model_type": self.tower.model_type,
            "text_config": {**text, "model_type": self.tower.text_type or text["model_type"]},
            "tie_word_embeddings": text["tie_word_embeddings"],
        }

    def processor(self) -> dict[str, Any]:
        """Return preprocessor_config.json."""
        statistics = {name: self.get(name) for name in ("image_mean", "image_std")}
        return self.tower.processor(self.header.metadata) | statistics


def _sizes(file: TowerFile) -> dict[str, Any]:
    return {
        "hidden_size": file.get("embedding_length"),
        "image_size": file.get("image_size"),
        "intermediate_size": file.get("feed_forward_length"),
        "layer_norm_eps": file.get("attention.layer_norm_epsilon"),
        "num_attention_heads": file.get("attention.head_count"),
        "num_hidden_layers": file.get("block_count"),
        "patch_size": file.get("patch_size"),
    }


def _siglip(file: TowerFile, model_type: str) -> dict[str, Any]:
    fields = {"model_type": model_type, "hidden_act": "gelu_pytorch_tanh", "vision_use_head": False}
    return _sizes(file) | fields


def _gemma3(file: TowerFile, tokens: Mapping[str, int]) -> dict[str, Any]:
    side = file.get("image_size") // file.get("patch_size") // file.get("projector.scale_factor", 4)
    return {
        "vision_config": _siglip(file, "siglip_vision_model"),
        "mm_tokens_per_image": side * side,
        "image_token_index": tokens["<image_soft_token>"],
        "boi_token_index": tokens["<start_of_image>"],
        "eoi_token_index": tokens["<end_of_image>"],
    }


def _idefics3(file: TowerFile, tokens: Mapping[str, int]) -> dict[str, Any]:
    return {
        "vision_config": _siglip(file, "idefics3_vision"),
        "image_token_id": tokens["<image>"],
        "scale_factor": file.get("projector.scale_factor"),
    }


def _internvl(file: TowerFile, tokens: Mapping[str, int]) -> dict[str, Any]:
    side, patch, factor = file.get("image_size"), file.get("patch_size"), file.get("projector.scale_factor")
    tensors = file.header.tensors
    vision = _sizes(file) | {
        "model_type": "internvl_vision",
        "attention_bias": "v.blk.0.attn_q.bias" in tensors,
        "hidden_act": "gelu",
        "image_size": [side, side],
        "norm_type": "layer_norm" if "v.blk.0.ln1.bias" in tensors else "rms_norm",
        "patch_size": [patch, patch],
        "use_qk_norm": "v.blk.0.attn_q_norm.weight" in tensors,
    }
    return {
        "vision_config": vision,
        "image_token_id": tokens["<IMG_CONTEXT>"],
        "image_seq_length": (side // patch // factor) ** 2,
        "downsample_ratio": 1 / factor,
    }


def _pixtral(file: TowerFile, tokens: Mapping[str, int]) -> dict[str, Any]:
    size, heads = file.get("embedding_length"), file.get("attention.head_count")
    vision = {
        "model_type": "pixtral",
        "head_dim": size // heads,
        "hidden_act": "silu" if file.header.metadata.get("clip.use_silu") else "gelu",
        "hidden_size": size,
        "image_size": file.get("image_size"),
        "intermediate_size": file.get("feed_forward_length"),
        "num_attention_heads": heads,
        "num_hidden_layers": file.get("block_count"),
        "patch_size": file.get("patch_size"),
    }
    return {
        "vision_config": vision,
        "image_token_index": tokens["[IMG]"],
        "multimodal_projector_bias": "mm.1.bias" in file.header.tensors,
        "spatial_merge_size": file.get("spatial_merge_size"),
        "vision_feature_layer": -1,
    }


def _qwen_tokens(tokens: Mapping[str, int]) -> dict[str, int]:
    names = ("image_pad", "video_pad", "vision_start", "vision_end")
    keys = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    return {key: tokens[f"<|{name}|>"] for key, name in zip(keys, names, strict=True)}


def _qwen2_vl(file: TowerFile, tokens: Mapping[str, int]) -> dict[str, Any]:
    size = file.get("embedding_length")
    first = "v.blk.0.ffn_down.bias" if file.is_swapped else "v.blk.0.ffn_up.bias"
    vision = {
        "model_type": "qwen2_vl_vision",
        "depth": file.get("block_count"),
        "embed_dim": size,
        "hidden_size": file.get("projection_dim"),
        "mlp_ratio": file.rows(first) // size,  # the file's own number is another one's
        "num_heads": file.get("attention.head_count"),
        "patch_size": file.get("patch_size"),
    }
    return _qwen_tokens(tokens) | {"vision_config": vision}


def _qwen2_5_vl(file: TowerFile, tokens: Mapping[str, int]) -> dict[str, Any]:
    depth, period = file.get("block_count"), file.get("n_wa_pattern")
    vision = {
        "model_type": "qwen2_5_vl_vision",
        "depth": depth,
        "fullatt_block_indexes": list(range(period - 1, depth, period)),
        "hidden_size": file.get("embedding_length"),
        "intermediate_size": file.get("feed_forward_length"),
        "num_heads": file.get("attention.head_count"),
        "out_hidden_size": file.get("projection_dim"),
        "patch_size": file.get("patch_size"),
        "tokens_per_second": 2,  # as published
        "window_size": file.get("window_size", 112),
    }
    return _qwen_tokens(tokens) | {"vision_config": vision}


def _qwen_processor(values: Mapping[str, Any]) -> dict[str, Any]:
    bounds = {"shortest_edge": ("image_min_pixels", 56 * 56), "longest_edge": ("image_max_pixels", 28 * 28 * 16384)}
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": values[f"{_KEY}patch_size"],
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {edge: values.get(_KEY + key, published) for edge, (key, published) in bounds.items()},
    }


_GEMMA3_PREFIX, _IDEFICS3_PREFIX = "vision_tower.vision_model.", "model.vision_model."
TOWERS = {
    "gemma3": Tower(
        "Gemma3ForConditionalGeneration",
        "gemma3",
        ("gemma3",),
        "gemma3_text",
        f"{_GEMMA3_PREFIX}encoder.layers.{{}}.",
        _SIGLIP,
        _siglip_outside(_GEMMA3_PREFIX)
        | {
            "mm.input_projection.weight": ("multi_modal_projector.mm_input_projection_weight", 0),
            "mm.soft_emb_norm": "multi_modal_projector.mm_soft_emb_norm",
        },
        _gemma3,
        lambda values: {
            "image_processor_type": "Gemma3ImageProcessor",
            "size": dict.fromkeys(("height", "width"), values[f"{_KEY}image_size"]),
        },
        token="<image_soft_token>",
        added={"multi_modal_projector.mm_soft_emb_norm.weight": 1.0},
    ),
    "idefics3": Tower(
        "Idefics3ForConditionalGeneration",
        "idefics3",
        ("llama",),
        "llama",
        f"{_IDEFICS3_PREFIX}encoder.layers.{{}}.",
        _SIGLIP,
        _siglip_outside(_IDEFICS3_PREFIX) | {"mm.model.fc": "model.connector.modality_projection.proj"},
        _idefics3,
        lambda values: {
            "image_processor_type": "Idefics3ImageProcessor",
            "size": {"longest_edge": values.get(f"{_KEY}preproc_image_size", 4 * values[f"{_KEY}image_size"])},
            "max_image_size": {"longest_edge": values[f"{_KEY}image_size"]},
            "do_image_splitting": True,
        },
    ),
    "internvl": Tower(
        "InternVLForConditionalGeneration",
        "internvl",
        ("qwen2", "qwen3", "qwen3moe", "gpt-oss", "llama"),
        "",
        "model.vision_tower.encoder.layer.{}.",
        _INTERNVL,
        {
            "v.class_embd": ("model.vision_tower.embeddings.cls_token", 0),
            "v.position_embd.weight": ("model.vision_tower.embeddings.position_embeddings", 0),
            "v.patch_embd": "model.vision_tower.embeddings.patch_embeddings.projection",
            "mm.model.mlp.0": "model.multi_modal_projector.layer_norm",
            "mm.model.mlp.1": "model.multi_modal_projector.linear_1",
            "mm.model.mlp.3": "model.multi_modal_projector.linear_2",
        },
        _internvl,
        lambda values: {
            "image_processor_type": "GotOcr2ImageProcessor",
            "size": dict.fromkeys(("height", "width"), values[f"{_KEY}image_size"]),
            "min_patches": values.get(f"{_KEY}preproc_min_tiles", 1),
            "max_patches": values.get(f"{_KEY}preproc_max_tiles", 12),
        },
    ),
    "pixtral": Tower(
        "Mistral3ForConditionalGeneration",
        "mistral3",
        ("mistral3", "llama"),
        "",
        "vision_tower.transformer.layers.{}.",
        _PIXTRAL,
        {
            "v.pre_ln": "vision_tower.ln_pre",
            "v.patch_embd": "vision_tower.patch_conv",
            "mm.input_norm": "multi_modal_projector.norm",
            "mm.patch_merger": "multi_modal_projector.patch_merger.merging_layer",
            "mm.1": "multi_modal_projector.linear_1",
            "mm.2": "multi_modal_projector.linear_2",
        },
        _pixtral,
        lambda values: {
            "image_processor_type": "PixtralImageProcessor",
            "patch_size": dict.fromkeys(("height", "width"), values[f"{_KEY}patch_size"]),
            "size": {"longest_edge": values[f"{_KEY}image_size"]},
        },
        is_turned=True,
    ),
    "qwen2vl_merger": Tower(
        "Qwen2VLForConditionalGeneration",
        "qwen2_vl",
        ("qwen2vl",),
        "qwen2_vl_text",
        "visual.blocks.{}.",
        _QWEN | {"ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
        _QWEN_OUTSIDE,
        _qwen2_vl,
        _qwen_processor,
    ),
    "qwen2.5vl_merger": Tower(
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl",
        ("qwen2vl",),
        "qwen2_5_vl_text",
        "visual.blocks.{}.",
        _QWEN | {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
        _QWEN_OUTSIDE,
        _qwen2_5_vl,
        _qwen_processor,
    ),
}


def read_tower(path: Path) -> TowerFile:
    """Return a tower's file.

    Raises `ValueError` if it is no GGUF file, or its projector is not read; begins as a predicate of the file's name,
    and `OSError` if it cannot be read.
    """
    header = read_header(path)
    kind = header.metadata.get(f"{_KEY}projector_type", header.metadata.get("clip.projector_type"))
    if kind not in TOWERS:
        raise ValueError(f"has a projector of the kind {kind!r}; those read are {', '.join(TOWERS)}")
    return TowerFile(path.resolve(), header, TOWERS[kind])


def tower_for(model: Path, text: Mapping[str, Any], tokens: object) -> TowerFile | None:
    """Return the tower alongside a model's file that fits its text part, the first by name; None without one.

    Towers that are not read, or ask for a token or a number that is not there, are named in the log: without another
    one, the model reads text only. ``model``: the model's file. ``text``: the text part's config. ``tokens``: texts of
    its tokens, in order; anything but a list: there are none.
    """
    for path in towers_beside(model):
        try:
            found = read_tower(path)
        except (OSError, ValueError) as error:
            logger.warning("%s %s: no images are seen with it", path, error)
            continue
        size = found.header.metadata.get(f"{_KEY}projection_dim")
        if text["gguf_architecture"] not in found.tower.texts or size != text.get("hidden_size"):
            continue
        try:
            found.config_with(text, [*(tokens if isinstance(tokens, list) else ()), found.tower.token])
        except KeyError as error:
            logger.warning("%s asks for %s, which is not there: no images are seen with it", path, error)
            continue
        return found
    return None
