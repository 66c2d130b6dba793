"""MiniCPM-V in float64 and plain matrix products, and tiny random checkpoints of it."""

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.support import tiny_vision_models as tiny
from tests.support.reference_layers import ReferenceLayers, attention, patches, seeing_logits, shapes_of, tensors_below

_SIDE, _PATCH, _MAX_SLICES, _QUERIES, _TABLE = 28, 7, 4, 4, 10
_HIDDEN, _HEADS, _TOWER, _TOWER_HEADS, _TOWER_MLP, _TOWER_LAYERS = 256, 2, 16, 2, 32, 2
_EPS = 1e-6
_SPECIAL = ["<unk>", "<image>", "</image>", "<slice>", "</slice>", "<image_id>", "</image_id>"]
_TEXTS: dict[float, tuple[type[PreTrainedModel], type[PretrainedConfig]]] = {
    2.5: (LlamaForCausalLM, LlamaConfig),
    2.6: (Qwen2ForCausalLM, Qwen2Config),
    4.0: (LlamaForCausalLM, LlamaConfig),
    4.5: (Qwen3ForCausalLM, Qwen3Config),
}


def make_tiny_minicpmv(directory: Path, version: float = 2.6) -> Path:
    """Make a MiniCPM-V with up to 4 slices of some 28 by 28 pixels, 4 rows a view; 2.5 says not its last layer."""
    tiny.write_tokenizer(directory, _SPECIAL, tiny.TEXT_TEMPLATE)
    text_class = _TEXTS[version][0]
    text = tiny.save_random(text_class, _text_config(version), directory.with_name("text"), 0)
    random = torch.Generator().manual_seed(1)
    tensors = {}
    for name, shape in _shapes().items():
        mean = 1.0 if "norm" in name or "ln_" in name else 0.0
        scale = 0.05 if name in ("resampler.proj", "resampler.attn.in_proj_weight") else 0.3
        tensors[name] = mean * name.endswith("weight") + torch.randn(shape, generator=random) * scale
    tensors |= {f"llm.{name}": values for name, values in load_file(text / "model.safetensors").items()}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((text / "config.json").read_text())
    config |= {
        "architectures": ["MiniCPMV"],
        "model_type": "minicpmv",
        "version": version,
        "drop_vision_last_layer": version == 2.5,
        "auto_map": {"AutoModel": "modeling_minicpmv.MiniCPMV"},
        "image_size": 448,
        "query_num": _QUERIES,
        "slice_mode": True,
        "use_image_id": version > 2.5,
        "vision_config": {
            "hidden_size": _TOWER,
            "image_size": _TABLE * _PATCH,
            "intermediate_size": _TOWER_MLP,
            "model_type": "siglip",
            "num_attention_heads": _TOWER_HEADS,
            "num_hidden_layers": _TOWER_LAYERS + (version == 2.5),
            "patch_size": _PATCH,
        },
    }
    (directory / "config.json").write_text(json.dumps(config))
    data = {
        "image_processor_type": "MiniCPMVImageProcessor",
        "image_feature_size": _QUERIES,
        "max_slice_nums": _MAX_SLICES,
    }
    data |= {"norm_mean": [0.5, 0.5, 0.5], "norm_std": [0.5, 0.5, 0.5], "patch_size": _PATCH, "version": version}
    data |= {"scale_resolution": _SIDE, "slice_mode": True, "use_image_id": version > 2.5}
    (directory / "preprocessor_config.json").write_text(json.dumps(data))
    shutil.rmtree(text)
    return directory


class MiniCpmReference(ReferenceLayers):
    """Logits of a checkpoint at each token."""

    def __init__(self, directory: Path) -> None:
        super().__init__(load_file(directory / "model.safetensors"))
        self.token = tiny.token_id(directory, "<unk>")
        self.version = json.loads((directory / "config.json").read_text())["version"]
        self.text = _TEXTS[self.version][0](_text_config(self.version)).double()
        self.text.load_state_dict(tensors_below(directory, "llm."))

    def __call__(self, ids: Sequence[int], images: Sequence[Image.Image]) -> torch.Tensor:
        rows = (row for image in images for view in self.views(image) for row in view)
        return seeing_logits(self.text, ids, self.token, rows)

    def views(self, image: Image.Image) -> list[torch.Tensor]:
        """Return the rows of each view of an image."""
        views = _views(image)
        max_patches = max(view.shape[0] * view.shape[1] for view in views) // _PATCH**2
        return [self.rows(view, max_patches) for view in views]

    def rows(self, view: np.ndarray, max_patches: int) -> torch.Tensor:
        """Return the rows of one view, line, column, colour, of an image whose largest has ``max_patches`` patches."""
        patch_rows, patch_columns = view.shape[0] // _PATCH, view.shape[1] // _PATCH
        grid = [(row, column) for row in range(patch_rows) for column in range(patch_columns)]
        squares = patches(view, _PATCH)
        if self.version == 2.5:  # the published code does not mask what fills up the shorter views of an image
            squares = torch.cat([squares, squares.new_zeros(max_patches - len(squares), squares.shape[1])])
        states = self.linear(squares, "vpm.embeddings.patch_embedding")
        table = [_bucket(row, patch_rows) * _TABLE + _bucket(column, patch_columns) for row, column in grid]
        if self.version == 2.5:  # nor does it report the tower where lines end
            table = [_bucket(i, max_patches) for i in range(max_patches)]
        states = states + self["vpm.embeddings.position_embedding.weight"][table]
        for layer in range(_TOWER_LAYERS):
            at = f"vpm.encoder.layers.{layer}."
            normed = self.norm(states, f"{at}layer_norm1", _EPS)
            q, k, v = (self.linear(normed, f"{at}self_attn.{name}_proj") for name in "qkv")
            states = states + self.linear(attention(q, k, v, _TOWER_HEADS), f"{at}self_attn.out_proj")
            inner = self.linear(self.norm(states, f"{at}layer_norm2", _EPS), f"{at}mlp.fc1")
            inner = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
            states = states + self.linear(inner, f"{at}mlp.fc2")
        states = self.norm(states, "vpm.post_layernorm", _EPS)[: len(grid)]

        keys = values = self.norm(self.linear(states, "resampler.kv_proj"), "resampler.ln_kv", _EPS)
        waves = torch.tensor([_wave(column) + _wave(row) for row, column in grid], dtype=torch.float64)
        if self.version == 4.5:
            values = values + waves
        else:
            keys = keys + waves
        queries = self.norm(self["resampler.query"], "resampler.ln_q", _EPS)
        weights = self["resampler.attn.in_proj_weight"].chunk(3)
        biases = self["resampler.attn.in_proj_bias"].chunk(3)
        q, k, v = (x @ w.T + b for x, w, b in zip((queries, keys, values), weights, biases, strict=True))
        found = self.linear(attention(q, k, v, _HEADS), "resampler.attn.out_proj")
        return self.norm(found, "resampler.ln_post", _EPS) @ self["resampler.proj"]


def _bucket(index: int, count: int) -> int:
    """Return the line of the table that the upper edge of one of ``count`` patches is in, in single precision."""
    bounds = [np.float32(line / _TABLE) for line in range(1, _TABLE)]
    return sum(bool(bound <= np.float32(index / count)) for bound in bounds)


def _wave(position: int) -> list[float]:
    """Return sines, then cosines, of a position: half of a row."""
    count = _HIDDEN // 4
    angles = [position * 10000 ** (-i / count) for i in range(count)]
    return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]


def _views(image: Image.Image) -> list[np.ndarray]:
    """Return the views of an image: the whole, then its slices in reading order."""
    width, height = image.size
    expected = min(math.ceil(width * height / _SIDE**2), _MAX_SLICES)
    if expected <= 1:
        return [_pixels(image.resize(_fitting(width, height), Image.Resampling.BICUBIC))]
    best, error = (1, 1), math.inf
    for count in (expected - 1, expected, expected + 1):
        if count == 1 or count > _MAX_SLICES:
            continue
        for columns in range(1, count + 1):
            if count % columns == 0:
                off = abs(math.log(width / height) - math.log(columns / (count // columns)))
                if off < error:
                    best, error = (columns, count // columns), off
    is_large = width * height > _SIDE**2
    size = _fitting(width, height) if is_large else (_rounded(width, _PATCH), _rounded(height, _PATCH))
    views = [_pixels(image.resize(size, Image.Resampling.BICUBIC))]
    columns, rows = best
    tile_width, tile_height = _fitting(_rounded(width, columns) / columns, _rounded(height, rows) / rows)
    pixels = _pixels(image.resize((tile_width * columns, tile_height * rows), Image.Resampling.BICUBIC))
    for row in range(rows):
        views += [
            pixels[row * tile_height : (row + 1) * tile_height, i * tile_width : (i + 1) * tile_width]
            for i in range(columns)
        ]
    return views


def _fitting(width: float, height: float) -> tuple[int, int]:
    """Return a size of the same shape with the pixels of a square, in whole patches."""
    tall = int(_SIDE / math.sqrt(width / height))
    return _rounded(int(tall * (width / height)), _PATCH), _rounded(tall, _PATCH)


def _rounded(length: float, unit: int) -> int:
    return max(round(length / unit) * unit, unit)


def _pixels(image: Image.Image) -> np.ndarray:
    return (np.asarray(image) / 255.0 - 0.5) / 0.5


def _shapes() -> dict[str, list[int]]:
    """Return the shapes of the tensors of the vision tower."""
    shapes = {
        "vpm.embeddings.patch_embedding.weight": [_TOWER, 3, _PATCH, _PATCH],
        "vpm.embeddings.patch_embedding.bias": [_TOWER],
        "vpm.embeddings.position_embedding.weight": [_TABLE * _TABLE, _TOWER],
        "resampler.query": [_QUERIES, _HIDDEN],
        "resampler.kv_proj.weight": [_HIDDEN, _TOWER],
        "resampler.attn.in_proj_weight": [3 * _HIDDEN, _HIDDEN],
        "resampler.attn.in_proj_bias": [3 * _HIDDEN],
        "resampler.attn.out_proj.weight": [_HIDDEN, _HIDDEN],
        "resampler.attn.out_proj.bias": [_HIDDEN],
        "resampler.proj": [_HIDDEN, _HIDDEN],
    }
    norms = {"vpm.post_layernorm": _TOWER, **{f"resampler.ln_{name}": _HIDDEN for name in ("q", "kv", "post")}}
    for layer in range(_TOWER_LAYERS):
        at = f"vpm.encoder.layers.{layer}."
        norms |= {f"{at}layer_norm1": _TOWER, f"{at}layer_norm2": _TOWER}
        layers = {f"{at}self_attn.{name}": [_TOWER, _TOWER] for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
        shapes |= shapes_of(layers | {f"{at}mlp.fc1": [_TOWER_MLP, _TOWER], f"{at}mlp.fc2": [_TOWER, _TOWER_MLP]}, {})
    return shapes | shapes_of({}, norms)


def _text_config(version: float) -> PretrainedConfig:
    sizes: dict[str, Any] = tiny.TEXT | {"hidden_size": _HIDDEN, "initializer_range": 0.1}
    if version == 4.5:
        sizes["head_dim"] = 32
    return _TEXTS[version][1](**sizes)
