"""Molmo in float64, plain matrix products in front of decoders of `transformers`, and tiny random checkpoints of it."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Olmo2ForCausalLM, OlmoeForCausalLM, Qwen2ForCausalLM

from tests.support import published
from tests.support import tiny_vision_models as tiny
from tests.support.reference_layers import CLIP_MEAN, CLIP_STD, ReferenceLayers, attention, seeing_logits, tensors_below

_PATCHES, _PATCH, _MARGIN, _MAX_CROPS = 6, 7, 2, 4
_SIDE, _STEP = _PATCHES * _PATCH, (_PATCHES - 2 * _MARGIN) * _PATCH
_HIDDEN, _TOWER, _HEADS, _MLP, _LAYERS, _INNER = 32, 128, 2, 48, 9, 40
_PREFIX = "model.vision_backbone."
_TABLE = "model.transformer.wte."
_UNUSED = "|<EXTRA_TOKENS_0>|"
_SPECIAL = ["<im_start>", "<im_end>", "<im_patch>", "<im_col>", "<|image|>"]
_VOCABULARY = 320


_DECODERS = {  # class, further sizes and layout
    "7B-D": (Qwen2ForCausalLM, {}, published.molmo),
    "7B-O": (Olmo2ForCausalLM, {}, published.molmo),
    "MolmoE": (
        OlmoeForCausalLM,
        {"intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2},
        published.molmoe,
    ),
}


def make_tiny_molmo(directory: Path, kind: str = "7B-D") -> Path:
    """Make a Molmo with crops of 6 by 6 patches, up to 4, of which neighbours share 4 lines of patches.

    On Qwen2 its vocabulary is full, so that the marks are in the further table; on OLMo they are in the first one.
    """
    decoder, sizes, publish = _DECODERS[kind]
    fill = [f"|<EXTRA_TOKENS_{i}>|" for i in range(_VOCABULARY - 258)] if kind == "7B-D" else []
    tiny.write_tokenizer(directory, [*fill, *_SPECIAL], tiny.TEXT_TEMPLATE)
    assert (tiny.token_id(directory, "<im_start>") == _VOCABULARY) == (kind == "7B-D")
    config = decoder.config_class(**(tiny.TEXT | {"vocab_size": _VOCABULARY} | sizes))
    tiny.save_random(decoder, config, directory.with_name("text"), 0)
    tiny.save_random(decoder, config, directory, 0)
    publish(directory)
    random = torch.Generator().manual_seed(1)
    tensors = load_file(directory / "model.safetensors")
    for name, shape in _shapes().items():
        mean = 1.0 if "norm.weight" in name or "pre_ln.weight" in name else 0.0
        scale = 0.1 if len(shape) == 2 and _TOWER in shape else 0.3
        tensors[_PREFIX + name] = mean + torch.randn(shape, generator=random) * scale
    tensors[f"{_TABLE}new_embedding"] = torch.randn(128, _HIDDEN, generator=random) * 0.3
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    settings = {"base_image_input_size": [_SIDE, _SIDE], "image_padding_mask": True, "image_patch_size": _PATCH}
    settings |= {"image_token_length_h": _PATCHES // 2, "image_token_length_w": _PATCHES // 2, "max_crops": _MAX_CROPS}
    settings |= {"overlap_margins": [_MARGIN, _MARGIN], "image_processor_type": "MolmoImageProcessor"}
    (directory / "preprocessor_config.json").write_text(json.dumps(settings))
    return directory


class MolmoReference(ReferenceLayers):
    """Logits of a checkpoint at each token."""

    def __init__(self, directory: Path) -> None:
        tables = tensors_below(directory, _TABLE)
        table = torch.cat([tables["embedding"], tables["new_embedding"]])
        super().__init__(tensors_below(directory, _PREFIX) | {"table": table})
        self.token_ids = {token: tiny.token_id(directory, token) for token in _SPECIAL}
        is_full = self.token_ids["<im_patch>"] >= _VOCABULARY
        self.token = tiny.token_id(directory, _UNUSED) if is_full else self.token_ids["<im_patch>"]
        text = directory.with_name("text")
        self.text = AutoModelForCausalLM.from_pretrained(text, dtype=torch.float64, experts_implementation="eager")

    def __call__(self, ids: Sequence[int], images: Sequence[Image.Image]) -> torch.Tensor:
        return seeing_logits(self.text, ids, self.token, (row for image in images for row in self.rows(image)))

    def rows(self, image: Image.Image) -> list[torch.Tensor]:
        """Return the rows of an image: of the whole, then of its crops as one image."""
        down, across = _tiling(image)
        canvas, mask = _fitted(image, down * _STEP + 2 * _MARGIN * _PATCH, across * _STEP + 2 * _MARGIN * _PATCH)
        corners = [(row * _STEP, column * _STEP) for row in range(down) for column in range(across)]
        crops = [_fitted(image, _SIDE, _SIDE)[0]]
        crops += [canvas[top : top + _SIDE, left : left + _SIDE] for top, left in corners]
        masks = [mask[top : top + _SIDE, left : left + _SIDE] for top, left in corners]
        # The published masks are those of the crops from the first on, the whole's being in front; the last has -1.
        pooled = [self._pooled(crop, part) for crop, part in zip(crops, [*masks, -np.ones_like(masks[0])], strict=True)]
        half, margin = _PATCHES // 2, _MARGIN // 2
        patch_rows, patch_columns = (count * (half - 2 * margin) + 2 * margin for count in (down, across))
        lines = [[torch.empty(0)] * patch_columns for _ in range(patch_rows)]
        for i in range(down * across):
            row, column = divmod(i, across)
            for y in range(margin if row else 0, half - (margin if row < down - 1 else 0)):
                for x in range(margin if column else 0, half - (margin if column < across - 1 else 0)):
                    at = (row * (half - 2 * margin) + y, column * (half - 2 * margin) + x)
                    lines[at[0]][at[1]] = pooled[i + 1][y * half + x]
        small = [[pooled[0][y * half + x] for x in range(half)] for y in range(half)]
        return self._written(small) + self._written(lines)

    def _written(self, lines: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        rows = {name: self["table"][row] for name, row in self.token_ids.items()}
        shown = [rows["<im_start>"]]
        for line in lines:
            shown += [rows["<im_patch>"] + row for row in line] + [rows["<im_col>"]]
        return [*shown, rows["<im_end>"]]

    def _pooled(self, crop: np.ndarray, mask: np.ndarray) -> list[torch.Tensor]:
        """Return the rows of a crop."""
        cells = [(row * _PATCH, column * _PATCH) for row in range(_PATCHES) for column in range(_PATCHES)]
        patches = [crop[top : top + _PATCH, left : left + _PATCH].flatten() for top, left in cells]
        shares = [mask[top : top + _PATCH, left : left + _PATCH].mean() for top, left in cells]
        states = self.linear(torch.from_numpy(np.stack(patches)), "image_vit.patch_embedding")
        states = torch.cat([self["image_vit.class_embedding"][None], states]) + self["image_vit.positional_embedding"]
        states = self.norm(states, "image_vit.pre_ln", 1e-5)
        behind = []
        for layer in range(_LAYERS):
            at = f"image_vit.transformer.resblocks.{layer}."
            normed = self.norm(states, f"{at}attention_norm", 1e-5)
            states = states + self._attended(normed, normed, f"{at}attention.")
            inner = self.linear(self.norm(states, f"{at}ffn_norm", 1e-5), f"{at}feed_forward.w1")
            states = states + self.linear(inner / (1 + torch.exp(-1.702 * inner)), f"{at}feed_forward.w2")
            behind.append(states[1:])
        seen = torch.cat([behind[_LAYERS - 2], behind[_LAYERS - 9]], dim=1)
        for i, share in enumerate(shares):
            if share == 0:
                seen[i] += self["pad_embed"][0]
            elif share < 1:
                seen[i] += self["pad_embed"][1]
        rows = []
        for y in range(0, _PATCHES, 2):
            for x in range(0, _PATCHES, 2):
                four = seen[
                    [y * _PATCHES + x, y * _PATCHES + x + 1, (y + 1) * _PATCHES + x, (y + 1) * _PATCHES + x + 1]
                ]
                found = self._attended(four.mean(dim=0)[None], four, "image_pooling_2d.")
                gate = self.linear(found, "image_projector.w1")
                inner = gate / (1 + torch.exp(-gate)) * self.linear(found, "image_projector.w3")
                rows.append(self.linear(inner, "image_projector.w2")[0])
        return rows

    def _attended(self, queries: torch.Tensor, states: torch.Tensor, at: str) -> torch.Tensor:
        q, k, v = self.linear(queries, f"{at}wq"), self.linear(states, f"{at}wk"), self.linear(states, f"{at}wv")
        return self.linear(attention(q, k, v, _HEADS), f"{at}wo")


def _tiling(image: Image.Image) -> tuple[int, int]:
    """Return rows and columns of crops: those enlarged for least, or, if none is, shrunk for least."""
    margins = 2 * _MARGIN * _PATCH
    found: list[tuple[float, int, int, int]] = []
    for down in range(1, _MAX_CROPS + 1):
        for across in range(1, _MAX_CROPS // down + 1):
            sides = ((down * _STEP, image.height - margins), (across * _STEP, image.width - margins))
            scale = min(a / b if b else np.inf for a, b in sides)
            found.append((scale, down * across, down, across))
    found.sort(key=lambda one: (one[1], one[2]))
    growing = [one for one in found if one[0] >= 1]
    best = min(growing, key=lambda one: one[0]) if growing else max(found, key=lambda one: one[0])
    return best[2], best[3]


def _fitted(image: Image.Image, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return an image in the middle of black, line, column, colour, and where it is."""
    scale = min(np.float32(height) / np.float32(image.height), np.float32(width) / np.float32(image.width))
    new_height, new_width = (max(int(np.float32(length) * scale), 1) for length in (image.height, image.width))
    pixels = np.einsum(
        "ry,yxc,sx->rsc",
        _triangles(image.height, new_height),
        np.asarray(image) / 255.0,
        _triangles(image.width, new_width),
    )
    top, left = (height - new_height) // 2, (width - new_width) // 2
    canvas, mask = np.zeros((height, width, 3)), np.zeros((height, width))
    canvas[top : top + new_height, left : left + new_width] = np.clip(pixels, 0, 1)
    mask[top : top + new_height, left : left + new_width] = 1
    return (canvas - np.array(CLIP_MEAN)) / np.array(CLIP_STD), mask


def _triangles(before: int, after: int) -> np.ndarray:
    """Return the weights of an image's lines in each line of another size: a triangle around its middle."""
    reach = max(before / after, 1.0)
    lines, middles = np.arange(before) + 0.5, (np.arange(after) + 0.5) * before / after
    weights = np.maximum(0.0, 1 - np.abs(lines[None] - middles[:, None]) / reach)
    shares: np.ndarray = weights / weights.sum(axis=1, keepdims=True)
    return shares


def _shapes() -> dict[str, list[int]]:
    """Return the shapes of the tensors of the vision tower."""

    def biased(name: str, outputs: int, inputs: int) -> dict[str, list[int]]:
        return {f"{name}.weight": [outputs, inputs], f"{name}.bias": [outputs]}

    def attention_spec(name: str, inputs: int) -> dict[str, list[int]]:
        shapes = biased(f"{name}.wo", _TOWER, _TOWER)
        for part in "qkv":
            shapes |= biased(f"{name}.w{part}", _TOWER, inputs)
        return shapes

    shapes = {
        "image_vit.class_embedding": [_TOWER],
        "image_vit.positional_embedding": [_PATCHES**2 + 1, _TOWER],
        "image_vit.patch_embedding.weight": [_TOWER, 3 * _PATCH**2],
        "pad_embed": [2, 2 * _TOWER],
        "image_projector.w1.weight": [_INNER, _TOWER],
        "image_projector.w2.weight": [_HIDDEN, _INNER],
        "image_projector.w3.weight": [_INNER, _TOWER],
    }
    shapes |= attention_spec("image_pooling_2d", 2 * _TOWER)
    norms = ["image_vit.pre_ln"]
    for layer in range(_LAYERS):
        at = f"image_vit.transformer.resblocks.{layer}."
        shapes |= attention_spec(f"{at}attention", _TOWER)
        shapes |= biased(f"{at}feed_forward.w1", _MLP, _TOWER) | biased(f"{at}feed_forward.w2", _TOWER, _MLP)
        norms += [f"{at}attention_norm", f"{at}ffn_norm"]
    return shapes | {f"{name}.{kind}": [_TOWER] for name in norms for kind in ("weight", "bias")}
