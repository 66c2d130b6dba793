"""Qwen-VL in float64, plain matrix products in front of `transformers`' Qwen2, and tiny random checkpoints of it."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from tests.support import published
from tests.support import tiny_vision_models as tiny
from tests.support.reference_layers import (
    ReferenceLayers,
    attention,
    patches,
    resized,
    seeing_logits,
    shapes_of,
    tensors_below,
)

_SIDE, _PATCH, _QUERIES, _TABLE = 28, 7, 4, 16
_HIDDEN, _HEADS, _TOWER, _TOWER_HEADS, _RATIO, _LAYERS = 256, 2, 16, 2, 1.6, 2
_PREFIX = "transformer.visual."
_EPS = 1e-6


def make_tiny_qwen_vl_chat(directory: Path) -> Path:
    """Make a Qwen-VL that sees 28 by 28 pixels as 4 rows."""
    tiny.write_tokenizer(directory, ["<imgpad>", "<img>", "</img>"], tiny.TEXT_TEMPLATE)
    tiny.save_random(Qwen2ForCausalLM, _text_config(), directory.with_name("text"), 0)
    tiny.save_random(Qwen2ForCausalLM, _text_config(), directory, 0)
    published.qwen(directory, trained_length=512)
    random = torch.Generator().manual_seed(1)
    tensors = load_file(directory / "model.safetensors")
    for name, shape in _shapes().items():
        mean = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
        scale = 0.05 if name in ("proj", "attn_pool.attn.in_proj_weight") else 0.3
        tensors[_PREFIX + name] = mean + torch.randn(shape, generator=random) * scale
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["visual"] = {
        "heads": _TOWER_HEADS,
        "image_size": _SIDE,
        "image_start_id": 259,
        "layers": _LAYERS,
        "mlp_ratio": _RATIO,
        "n_queries": _QUERIES,
        "output_dim": _HIDDEN,
        "patch_size": _PATCH,
        "width": _TOWER,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory


class QwenVlReference(ReferenceLayers):
    """Logits of a checkpoint at each token."""

    def __init__(self, directory: Path) -> None:
        super().__init__(tensors_below(directory, _PREFIX))
        self.token = tiny.token_id(directory, "<imgpad>")
        self.text = Qwen2ForCausalLM.from_pretrained(directory.with_name("text"), dtype=torch.float64)

    def __call__(self, ids: Sequence[int], images: Sequence[Image.Image]) -> torch.Tensor:
        return seeing_logits(self.text, ids, self.token, (row for image in images for row in self.rows(image)))

    def rows(self, image: Image.Image) -> torch.Tensor:
        """Return the rows of an image."""
        side = _SIDE // _PATCH
        states = self.linear(patches(resized(image, _SIDE), _PATCH), "conv1")
        states = self.norm(states + _stretched(self["positional_embedding"], side), "ln_pre", _EPS)
        size = _TOWER // _TOWER_HEADS
        for layer in range(_LAYERS):
            at = f"transformer.resblocks.{layer}."
            joined = self.linear(self.norm(states, f"{at}ln_1", _EPS), f"{at}attn.in_proj")
            heads = [part.split(size, dim=1) for part in joined.split(3 * size, dim=1)]
            q, k, v = (torch.cat(parts, dim=1) for parts in zip(*heads, strict=True))
            states = states + self.linear(attention(q, k, v, _TOWER_HEADS), f"{at}attn.out_proj")
            inner = self.linear(self.norm(states, f"{at}ln_2", _EPS), f"{at}mlp.c_fc")
            inner = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))
            states = states + self.linear(inner, f"{at}mlp.c_proj")
        embedding = self["attn_pool.pos_embed"]
        values = self.norm(self.linear(states, "attn_pool.kv_proj"), "attn_pool.ln_kv", _EPS)
        queries = self.norm(self["attn_pool.query"], "attn_pool.ln_q", _EPS) + embedding
        weights = self["attn_pool.attn.in_proj_weight"].chunk(3)
        biases = self["attn_pool.attn.in_proj_bias"].chunk(3)
        inputs = (queries, values + _stretched(embedding, side), values)
        q, k, v = (x @ w.T + b for x, w, b in zip(inputs, weights, biases, strict=True))
        found = self.linear(attention(q, k, v, _HEADS), "attn_pool.attn.out_proj")
        return self.norm(found, "ln_post", _EPS) @ self["proj"]


def _stretched(table: torch.Tensor, side: int) -> torch.Tensor:
    """Return a square table in another size, by cubic convolution along rows and columns."""
    before = math.isqrt(len(table))
    weights = torch.zeros(side, before, dtype=torch.float64)
    for index in range(side):
        at = (index + 0.5) * before / side - 0.5
        for tap in range(math.floor(at) - 1, math.floor(at) + 3):
            weights[index, min(max(tap, 0), before - 1)] += _cubic(abs(at - tap))
    square = table.view(before, before, -1)
    return torch.einsum("ra,cb,abx->rcx", weights, weights, square).flatten(0, 1)


def _cubic(x: float) -> float:
    """Return Keys' kernel with a = -3/4."""
    if x <= 1:
        return 1.25 * x**3 - 2.25 * x**2 + 1
    return -0.75 * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


def _shapes() -> dict[str, list[int]]:
    """Return the shapes of the tensors of the vision tower."""
    shapes = {
        "conv1.weight": [_TOWER, 3, _PATCH, _PATCH],
        "positional_embedding": [_TABLE * _TABLE, _TOWER],
        "attn_pool.query": [_QUERIES, _HIDDEN],
        "attn_pool.pos_embed": [_QUERIES, _HIDDEN],
        "attn_pool.kv_proj.weight": [_HIDDEN, _TOWER],
        "attn_pool.attn.in_proj_weight": [3 * _HIDDEN, _HIDDEN],
        "attn_pool.attn.in_proj_bias": [3 * _HIDDEN],
        "proj": [_HIDDEN, _HIDDEN],
    }
    norms = {"ln_pre": _TOWER, "ln_post": _HIDDEN, "attn_pool.ln_q": _HIDDEN, "attn_pool.ln_kv": _HIDDEN}
    inner = int(_TOWER * _RATIO)
    layers = {"attn_pool.attn.out_proj": [_HIDDEN, _HIDDEN]}
    for layer in range(_LAYERS):
        at = f"transformer.resblocks.{layer}."
        norms |= {f"{at}ln_1": _TOWER, f"{at}ln_2": _TOWER}
        layers |= {f"{at}attn.in_proj": [3 * _TOWER, _TOWER], f"{at}attn.out_proj": [_TOWER, _TOWER]}
        layers |= {f"{at}mlp.c_fc": [inner, _TOWER], f"{at}mlp.c_proj": [_TOWER, inner]}
    return shapes | shapes_of(layers, norms)


def _text_config() -> Qwen2Config:
    sizes: dict[str, Any] = tiny.TEXT | {"hidden_size": _HIDDEN, "num_key_value_heads": 4, "initializer_range": 0.1}
    return Qwen2Config(**sizes)
