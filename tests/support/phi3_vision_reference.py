"""Phi-3-vision in float64 and loops, and tiny random checkpoints of it."""

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
from transformers import CLIPVisionConfig, CLIPVisionModel, Phi3Config, Phi3ForCausalLM

from tests.support import tiny_vision_models as tiny
from tests.support.reference_layers import CLIP_MEAN, CLIP_STD, seeing_logits

_SIDE, _PATCH, _MAX_TILES, _HIDDEN, _TOWER_HIDDEN = 28, 7, 4, 32, 16
_PREFIX = "model.vision_embed_tokens."
_TRAINED = 256
_FACTORS = {"short_factor": [1.0, 1.1, 1.3, 1.6], "long_factor": [1.0, 2.0, 3.0, 4.0]}


def make_tiny_phi3_vision(directory: Path) -> Path:
    """Make a Phi-3.5-vision with up to 4 tiles of 28 pixels, of 4 rows each; its tower's sizes are in a folder."""
    tiny.write_tokenizer(directory, ["<|image|>"], tiny.TEXT_TEMPLATE)
    tower = CLIPVisionModel(tower_config())
    folder = directory.with_name("clip")
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tower_config().to_dict()))
    text = tiny.save_random(Phi3ForCausalLM, _text_config(), directory.with_name("text"), 0)
    random = torch.Generator().manual_seed(1)
    merged = 4 * _TOWER_HIDDEN
    shapes = {f"img_processor.vision_model.{name}": list(values.shape) for name, values in tower.state_dict().items()}
    shapes |= {
        "img_projection.0.weight": [_HIDDEN, merged],
        "img_projection.0.bias": [_HIDDEN],
        "img_projection.2.weight": [_HIDDEN, _HIDDEN],
        "img_projection.2.bias": [_HIDDEN],
        "glb_GN": [1, 1, merged],
        "sub_GN": [1, 1, 1, merged],
    }
    tensors = {
        _PREFIX + name: torch.randn(shape, generator=random) * 0.3
        for name, shape in shapes.items()
        if not name.endswith("position_ids")
    }
    tensors |= load_file(text / "model.safetensors")
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((text / "config.json").read_text())
    del config["rope_parameters"]
    config |= {
        "architectures": ["Phi3VForCausalLM"],
        "model_type": "phi3_v",
        "rope_scaling": {"type": "su", **_FACTORS},
        "rope_theta": 10000.0,
        "original_max_position_embeddings": _TRAINED,
        "img_processor": {"model_name": str(folder), "name": "clip_vision_model", "num_img_tokens": 4},
        "embd_layer": {"hd_transform_order": "sub_glb", "use_hd_transform": True, "with_learnable_separator": True},
    }
    (directory / "config.json").write_text(json.dumps(config))
    data = {
        "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD,
        "num_crops": _MAX_TILES,
        "image_processor_type": "Phi3VImageProcessor",
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(data))
    shutil.rmtree(text)
    return directory


class Phi3VisionReference:
    """Logits of a checkpoint at each token."""

    def __init__(self, directory: Path) -> None:
        self.token = tiny.token_id(directory, "<|image|>")
        tensors = {name: values.double() for name, values in load_file(directory / "model.safetensors").items()}
        self.text = Phi3ForCausalLM(_text_config()).double()
        self.text.load_state_dict({name: values for name, values in tensors.items() if not name.startswith(_PREFIX)})
        self.seeing = {name.removeprefix(_PREFIX): values for name, values in tensors.items()}
        self.tower = CLIPVisionModel(tower_config()).double()
        begin = "img_processor.vision_model."
        self.tower.load_state_dict(
            {name.removeprefix(begin): values for name, values in self.seeing.items() if name.startswith(begin)}
        )

    def __call__(self, ids: Sequence[int], images: Sequence[Image.Image]) -> torch.Tensor:
        rows = (row for image in images for row in self.rows(image))
        return seeing_logits(self.text, ids, self.token, rows)

    def rows(self, image: Image.Image) -> torch.Tensor:
        """Return an image's rows."""
        pixels = canvas(image)
        tile_rows, tile_columns = pixels.shape[1] // _SIDE, pixels.shape[2] // _SIDE
        lines = self._lines(
            [[self._patches(tile_of(pixels, y, x)) for x in range(tile_columns)] for y in range(tile_rows)]
        )
        whole = self._lines([[self._patches(shrunk(pixels))]])
        separator = self.seeing["glb_GN"].flatten()
        return self._projected(torch.stack([*lines, separator, *whole]))

    def _projected(self, merged: torch.Tensor) -> torch.Tensor:
        hidden = merged @ self.seeing["img_projection.0.weight"].T + self.seeing["img_projection.0.bias"]
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        return hidden @ self.seeing["img_projection.2.weight"].T + self.seeing["img_projection.2.bias"]

    def _patches(self, tile: np.ndarray) -> torch.Tensor:
        """Return the patches of a tile ``[rows, columns, hidden]``."""
        states = self.tower(torch.from_numpy(tile)[None], output_hidden_states=True).hidden_states
        side = _SIDE // _PATCH
        patches: torch.Tensor = states[-2][0, 1:].view(side, side, -1)
        return patches

    def _lines(self, tiles: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        """Return the merged patches of a grid of tiles in reading order, each line ended."""
        side = _SIDE // _PATCH // 2
        result = []
        for y in range(len(tiles) * side):
            for x in range(len(tiles[0]) * side):
                tile = tiles[y // side][x // side]
                top, left = 2 * (y % side), 2 * (x % side)
                result.append(torch.cat([tile[top + i, left + j] for i in (0, 1) for j in (0, 1)]))
            result.append(self.seeing["sub_GN"].flatten())
        return result


def canvas(image: Image.Image) -> np.ndarray:
    """Return the normalized pixels of an image on white, in whole tiles: colour, line, column."""
    is_upright = image.width < image.height
    if is_upright:
        image = image.transpose(Image.Transpose.TRANSPOSE)
    ratio = image.width / image.height
    scale = max(n for n in range(1, _MAX_TILES + 1) if n * math.ceil(n / ratio) <= _MAX_TILES)
    height = int(scale * _SIDE / ratio)
    shown = np.asarray(image.resize((scale * _SIDE, height), Image.Resampling.BILINEAR))
    padding = -height % _SIDE
    white = [np.full((rows, scale * _SIDE, 3), 255, dtype=np.uint8) for rows in (padding // 2, padding - padding // 2)]
    pixels = np.concatenate([white[0], shown, white[1]])
    if is_upright:
        pixels = pixels.transpose(1, 0, 2)
    return ((pixels / 255.0 - CLIP_MEAN) / CLIP_STD).transpose(2, 0, 1)


def tile_of(pixels: np.ndarray, row: int, column: int) -> np.ndarray:
    """Return one of the tiles of a canvas."""
    return pixels[:, row * _SIDE : (row + 1) * _SIDE, column * _SIDE : (column + 1) * _SIDE].copy()


def shrunk(pixels: np.ndarray) -> np.ndarray:
    """Return pixels at the size of a tile, by cubic convolution (Keys, a = -0.75) between pixel centres."""
    return np.einsum("yh,chw,xw->cyx", _cubic(pixels.shape[1]), pixels, _cubic(pixels.shape[2]))


def _cubic(length: int) -> np.ndarray:
    a, weights = -0.75, np.zeros((_SIDE, length))
    for i in range(_SIDE):
        centre = (i + 0.5) * length / _SIDE - 0.5
        for j in range(math.floor(centre) - 1, math.floor(centre) + 3):
            x = abs(centre - j)
            near, far = (a + 2) * x**3 - (a + 3) * x**2 + 1, a * (x**3 - 5 * x**2 + 8 * x - 4)
            weights[i, min(max(j, 0), length - 1)] += near if x <= 1 else far
    return weights


def tower_config(hidden_size: int = _TOWER_HIDDEN) -> CLIPVisionConfig:
    """Return the sizes of a CLIP with two heads that sees 28 by 28 pixels."""
    return CLIPVisionConfig(
        hidden_size=hidden_size,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=_SIDE,
        patch_size=_PATCH,
    )


def _text_config() -> Phi3Config:
    sizes: dict[str, Any] = tiny.TEXT | {"hidden_size": _HIDDEN}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": _TRAINED, **_FACTORS}
    return Phi3Config(**sizes, original_max_position_embeddings=_TRAINED, rope_parameters=rope)
