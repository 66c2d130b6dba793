"""GLM-4V 9B in float64, plain matrix products in front of `transformers` GLM, and tiny random checkpoints of it."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import GlmConfig, GlmForCausalLM

from tests.support import published
from tests.support import tiny_vision_models as tiny
from tests.support.reference_layers import ReferenceLayers, attention, patches, resized, shapes_of, tensors_below

_SIDE, _PATCH, _HIDDEN, _INNER = 28, 7, 32, 64
_TOWER, _HEADS, _MLP, _LAYERS, _SCALE = 16, 2, 24, 2, 8
_PREFIX = "transformer.vision."
VISION = {
    "dropout_prob": 0.0,
    "hidden_act": "gelu",
    "hidden_size": _TOWER,
    "image_size": _SIDE,
    "in_channels": 3,
    "intermediate_size": _MLP,
    "layer_norm_eps": 1e-6,
    "num_heads": _HEADS,
    "num_hidden_layers": _LAYERS,
    "num_positions": (_SIDE // _PATCH) ** 2 + 1,
    "patch_size": _PATCH,
}


def make_tiny_glm_4v(directory: Path) -> Path:
    """Make a GLM-4V that sees 28 by 28 pixels: 4 rows of them and one at each end."""
    tiny.write_tokenizer(directory, ["<|begin_of_image|>", "<|end_of_image|>"], tiny.TEXT_TEMPLATE)
    tiny.save_random(GlmForCausalLM, _text_config(), directory.with_name("text"), 0)
    tiny.save_random(GlmForCausalLM, _text_config(), directory, 0)
    published.chatglm(directory)
    random = torch.Generator().manual_seed(1)
    tensors = load_file(directory / "model.safetensors")
    for name, shape in seeing_shapes(_HIDDEN).items():
        mean = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        tensors[_PREFIX + name] = mean + torch.randn(shape, generator=random) * 0.3
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["vision_config"] = VISION | {"scaling_factor": _SCALE}
    config |= {"boi_token_id": 258, "eoi_token_id": 259, "rope_ratio": 1}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


class Glm4vReference(ReferenceLayers):
    """Logits of a checkpoint at each token."""

    def __init__(self, directory: Path) -> None:
        super().__init__(tensors_below(directory, _PREFIX))
        self.token = tiny.token_id(directory, "<|begin_of_image|>")
        self.text = GlmForCausalLM.from_pretrained(directory.with_name("text"), dtype=torch.float64)

    def __call__(self, ids: Sequence[int], images: Sequence[Image.Image]) -> torch.Tensor:
        embeddings = self.text.model.embed_tokens.weight[torch.tensor(ids)].detach().clone()
        rows = [self.rows(image) for image in images]
        positions, position, shown = [], 0, 0
        while len(positions) < len(ids):
            at = len(positions)
            if ids[at] != self.token:
                positions.append(position)
                position += 1
                continue
            count = len(rows[shown])
            embeddings[at : at + count] = rows[shown]
            positions += [position, *[position + 1] * (count - 2), position + 2]
            position, shown = position + 3, shown + 1
        assert shown == len(images)
        with torch.inference_mode():
            logits: torch.Tensor = self.text(
                inputs_embeds=embeddings[None], position_ids=torch.tensor([positions])
            ).logits[0]
        return logits

    def rows(self, image: Image.Image) -> torch.Tensor:
        """Return the rows of an image."""
        rows = self.projected(self.merged(self.patches(image)))
        return torch.cat([self["boi"][0], rows, self["eoi"][0]]) / _SCALE

    def patches(self, image: Image.Image) -> torch.Tensor:
        """Return the last states of the patches of an image ``[rows, columns, hidden]``."""
        side = _SIDE // _PATCH
        seen = self.linear(patches(resized(image, _SIDE), _PATCH), "patch_embedding.proj")
        states = torch.cat([self["patch_embedding.cls_embedding"], seen])
        states = states + self["patch_embedding.position_embedding.weight"]
        for layer in range(_LAYERS):
            at = f"transformer.layers.{layer}."
            q, k, v = self.linear(states, f"{at}attention.query_key_value").chunk(3, dim=-1)
            seen = self.linear(attention(q, k, v, _HEADS), f"{at}attention.dense")
            states = states + self.norm(seen, f"{at}input_layernorm", 1e-6)
            inner = _gelu(self.linear(states, f"{at}mlp.fc1"))
            states = states + self.norm(self.linear(inner, f"{at}mlp.fc2"), f"{at}post_attention_layernorm", 1e-6)
        return states[1:].view(side, side, _TOWER)

    def merged(self, grid: torch.Tensor) -> torch.Tensor:
        """Return groups of four patches merged."""
        merged = []
        for row in range(0, len(grid), 2):
            for column in range(0, len(grid), 2):
                square = grid[row : row + 2, column : column + 2].permute(2, 0, 1).flatten()
                merged.append(self.linear(square, "conv"))
        return torch.stack(merged)

    def projected(self, merged: torch.Tensor) -> torch.Tensor:
        """Return the rows."""
        hidden = _gelu(self.norm(self.linear(merged, "linear_proj.linear_proj"), "linear_proj.norm1", 1e-5))
        gate = self.linear(hidden, "linear_proj.gate_proj")
        inner = gate / (1 + torch.exp(-gate)) * self.linear(hidden, "linear_proj.dense_h_to_4h")
        return self.linear(inner, "linear_proj.dense_4h_to_h")


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def seeing_shapes(merged: int) -> dict[str, list[int]]:
    """Return the shapes of the tensors of the vision tower, ``merged`` numbers made of patches at a time."""
    shapes = {
        "patch_embedding.cls_embedding": [1, _TOWER],
        "patch_embedding.position_embedding.weight": [(_SIDE // _PATCH) ** 2 + 1, _TOWER],
        "linear_proj.linear_proj.weight": [_HIDDEN, merged],
        "linear_proj.gate_proj.weight": [_INNER, _HIDDEN],
        "linear_proj.dense_h_to_4h.weight": [_INNER, _HIDDEN],
        "linear_proj.dense_4h_to_h.weight": [_HIDDEN, _INNER],
        "boi": [1, 1, _HIDDEN],
        "eoi": [1, 1, _HIDDEN],
    }
    norms = {"linear_proj.norm1": _HIDDEN}
    layers = {"patch_embedding.proj": [_TOWER, 3, _PATCH, _PATCH], "conv": [merged, _TOWER, 2, 2]}
    for layer in range(_LAYERS):
        at = f"transformer.layers.{layer}."
        norms |= {f"{at}input_layernorm": _TOWER, f"{at}post_attention_layernorm": _TOWER}
        layers |= {f"{at}attention.query_key_value": [3 * _TOWER, _TOWER], f"{at}attention.dense": [_TOWER, _TOWER]}
        layers |= {f"{at}mlp.fc1": [_MLP, _TOWER], f"{at}mlp.fc2": [_TOWER, _MLP]}
    return shapes | shapes_of(layers, norms)


def _text_config() -> GlmConfig:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    sizes: dict[str, Any] = tiny.TEXT | {"attention_bias": True, "head_dim": 8, "rope_parameters": rope}
    return GlmConfig(**sizes)
