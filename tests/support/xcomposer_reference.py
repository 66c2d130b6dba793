"""InternLM-XComposer2 in float64: tiny random checkpoints of it, and `transformers`' Llama with low-rank matrices."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CLIPVisionModel, LlamaConfig, LlamaForCausalLM

from tests.support import published
from tests.support import tiny_vision_models as tiny
from tests.support.phi3_vision_reference import canvas, shrunk, tile_of, tower_config
from tests.support.reference_layers import added, resized, seeing_logits, split

_HIDDEN, _TOWER, _SIDE, _PATCH, _RANK = 32, 128, 28, 7, 256
_BEGIN = "vit.vision_tower.vision_model."
_LINEAR = {
    "self_attn.q_proj": "attention.wqkv",
    "self_attn.k_proj": "attention.wqkv",
    "self_attn.v_proj": "attention.wqkv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}


def make_tiny_xcomposer(directory: Path, *, tiles: bool = False) -> Path:
    """Make one that sees 28 by 28 pixels in 16 rows, or up to 4 tiles of them."""
    tiny.write_tokenizer(directory, ["<unk>"], tiny.TEXT_TEMPLATE)
    config = LlamaConfig(**tiny.TEXT, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    tiny.save_random(LlamaForCausalLM, config, directory.with_name("text"), 0)
    tiny.save_random(LlamaForCausalLM, config, directory, 0)
    published.internlm2(directory)
    tensors = load_file(directory / "model.safetensors")
    random = torch.Generator().manual_seed(3)
    for name in [name for name in tensors if name.startswith("model.layers.") and tensors[name].dim() == 2]:
        outputs, inputs = tensors[name].shape
        at = name.removesuffix("weight")
        tensors[f"{at}Plora_A.weight"] = torch.randn(_RANK, inputs, generator=random) * 0.1
        tensors[f"{at}Plora_B.weight"] = torch.randn(outputs, _RANK, generator=random) * 0.1
    merged = 4 * _TOWER if tiles else _TOWER
    shapes = {
        _BEGIN + name: list(values.shape) for name, values in CLIPVisionModel(tower_config(_TOWER)).state_dict().items()
    }
    shapes |= {"vision_proj.0.weight": [_HIDDEN, merged], "vision_proj.2.weight": [_HIDDEN, _HIDDEN]}
    shapes |= {"vision_proj.0.bias": [_HIDDEN], "vision_proj.2.bias": [_HIDDEN]}
    if tiles:
        shapes |= {"plora_glb_GN": [1, 1, merged], "plora_sub_GN": [1, 1, 1, merged]}
    for name, shape in shapes.items():
        if not name.endswith("position_ids"):
            tensors[name] = torch.randn(shape, generator=random) * (0.1 if _TOWER in shape else 0.3)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    raw = json.loads((directory / "config.json").read_text())
    raw |= {"architectures": ["InternLMXComposer2ForCausalLM"], "model_type": "internlmxcomposer2"}
    raw |= {"hd_num": 4} if tiles else {}
    (directory / "config.json").write_text(json.dumps(raw))
    return directory


class XComposerReference:
    """Logits of a checkpoint at each token."""

    def __init__(self, directory: Path) -> None:
        self._tensors = {name: values.double() for name, values in load_file(directory / "model.safetensors").items()}
        self._token = tiny.token_id(directory, "<unk>")
        self._text = LlamaForCausalLM.from_pretrained(directory.with_name("text"), dtype=torch.float64)
        self._rows = split(self._text, list(_LINEAR), self._change)
        self._tower = CLIPVisionModel(tower_config(_TOWER)).double()
        self._tower.load_state_dict(
            {name.removeprefix(_BEGIN): values for name, values in self._tensors.items() if name.startswith(_BEGIN)}
        )

    def __call__(self, ids: Sequence[int], images: Sequence[Image.Image]) -> Tensor:
        self._rows.positions = [position for position, token in enumerate(ids) if token == self._token]
        with torch.inference_mode():
            return seeing_logits(self._text, ids, self._token, [row for image in images for row in self._seen(image)])

    def _change(self, name: str) -> Callable[[Tensor, Tensor], Tensor]:
        _, _, layer, part = name.split(".", 3)
        at = f"model.layers.{layer}.{_LINEAR[part]}."
        down, up = (self._tensors[f"{at}Plora_{which}.weight"] for which in "AB")
        if part.startswith("self_attn.") and part != "self_attn.o_proj":
            heads, keys = tiny.TEXT["num_attention_heads"], tiny.TEXT["num_key_value_heads"]
            size, group = _HIDDEN // heads, heads // keys
            slots = {"q": range(group), "k": [group], "v": [group + 1]}[part.split(".")[1][0]]
            rows = [(key * (group + 2) + slot) * size + i for key in range(keys) for slot in slots for i in range(size)]
            up = up[rows]
        return added(down, up)

    def _seen(self, image: Image.Image) -> Tensor:
        """Return an image's rows."""
        if "plora_glb_GN" not in self._tensors:
            pixels = resized(image, _SIDE).transpose(2, 0, 1)
            return self._projected(self._patches(pixels).flatten(0, 1))
        pixels = canvas(image)
        tile_rows, tile_columns = pixels.shape[1] // _SIDE, pixels.shape[2] // _SIDE
        tiles = [[self._patches(tile_of(pixels, y, x)) for x in range(tile_columns)] for y in range(tile_rows)]
        separator = self._tensors["plora_glb_GN"].flatten()
        return self._projected(
            torch.stack([*self._lines([[self._patches(shrunk(pixels))]]), separator, *self._lines(tiles)])
        )

    def _patches(self, pixels: np.ndarray) -> Tensor:
        """Return the last states of the patches of a square ``[rows, columns, hidden]``."""
        states = self._tower(torch.from_numpy(pixels)[None], output_hidden_states=True).hidden_states[-1]
        side = _SIDE // _PATCH
        patches: Tensor = states[0, 1:].view(side, side, -1)
        return patches

    def _lines(self, tiles: list[list[Tensor]]) -> list[Tensor]:
        """Return the merged patches of a grid of tiles in reading order, each line ended."""
        whole = torch.cat([torch.cat(line, dim=1) for line in tiles])
        result = []
        for y in range(0, whole.shape[0], 2):
            squares = [whole[y : y + 2, x : x + 2] for x in range(0, whole.shape[1], 2)]
            result += [torch.cat([*square[0], *square[1]]) for square in squares]
            result.append(self._tensors["plora_sub_GN"].flatten())
        return result

    def _projected(self, merged: Tensor) -> Tensor:
        hidden = merged @ self._tensors["vision_proj.0.weight"].T + self._tensors["vision_proj.0.bias"]
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        return hidden @ self._tensors["vision_proj.2.weight"].T + self._tensors["vision_proj.2.bias"]
