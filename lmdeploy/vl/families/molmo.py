"""Molmo: the whole image, then crops of it that overlap, line by line; a line ends in its own embedding.

Rows are added to embeddings, which the decoder's vocabulary lacks in some models, so that all of what an image is
written with comes from here. An unused token stands for it, or, in vocabularies without one, the patches' own.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any

from PIL import Image

from lmdeploy.turbomind.safetensors_index import read_checkpoint
from lmdeploy.vl.families.common import Checkpoint, NativeForm, Options, VisionFamily, VisionPart, renamed
from lmdeploy.vl.tensors import rows_of_tensor

if TYPE_CHECKING:
    import torch

_TOKEN = "|<EXTRA_TOKENS_0>|"
_BEGIN, _PATCH, _LINE_END, _END = _SPECIAL = ("<im_start>", "<im_patch>", "<im_col>", "<im_end>")
_OTHERS = ("<|image|>",)
_TABLE = "model.transformer.wte."
_VIT = "model.vision_backbone.image_vit."
_HEAD_DIM = 64  # CLIP's
_LAYER = r"^image_vit\.(resblocks\.\d+)\."
_NAMES = (
    (r"^model\.vision_backbone\.(image_vit\.)?(transformer\.)?", r"\1"),
    (_LAYER + r"attention\.w([qkv])\.", r"image_vit.\1.self_attn.\2_proj."),
    (_LAYER + r"attention\.wo\.", r"image_vit.\1.self_attn.out_proj."),
    (_LAYER + r"feed_forward\.w(\d)\.", r"image_vit.\1.mlp.fc\2."),
    (_LAYER + r"attention_norm\.", r"image_vit.\1.layer_norm1."),
    (_LAYER + r"ffn_norm\.", r"image_vit.\1.layer_norm2."),
)


@dataclass(frozen=True)
class Cropper:
    """How images are cut."""

    side: int  # of a crop, in pixels
    patch: int  # side of a patch
    max_crops: int  # crops of an image
    margins: tuple[int, int]  # patches at the beginning and the end of a crop that its neighbours see too

    @property
    def window(self) -> int:
        """Patches of a crop between its margins."""
        return self.side // self.patch - sum(self.margins)

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of crops: what an image is enlarged least for, or shrunk least."""
        import numpy as np

        counts = range(1, self.max_crops + 1)
        grids = [(rows, columns) for rows in counts for columns in counts if rows * columns <= self.max_crops]
        grids.sort(key=lambda grid: (grid[0] * grid[1], grid[0]))
        seen = np.array([size[1], size[0]], np.float32) - self.patch * sum(self.margins)
        with np.errstate(divide="ignore"):  # images may be as small as the margins
            scales = np.min(np.array(grids, np.float32) * (self.window * self.patch) / seen, axis=1)
        if np.all(scales < 1):
            return grids[int(np.argmax(scales))]
        return grids[int(np.argmin(np.where(scales < 1, np.float32(1e10), scales)))]

    def kept(self, index: int, count: int) -> slice:
        """Return which pooled lines of a crop are shown, of ``count`` crops side by side."""
        first, last = (margin // 2 for margin in self.margins)
        return slice(first if index > 0 else 0, self.side // self.patch // 2 - (last if index < count - 1 else 0))

    def cut(self, image: Image.Image) -> "tuple[torch.Tensor, torch.Tensor]":
        """Return patches of the whole and of all crops ``[1 + crops, patches, numbers]``, and their masks."""
        import torch

        rows, columns = self.grid(image.size)
        step, margin = self.window * self.patch, sum(self.margins) * self.patch
        canvas, mask = self._fitted(image, rows * step + margin, columns * step + margin)
        whole, _ = self._fitted(image, self.side, self.side)
        corners = [(row * step, column * step) for row in range(rows) for column in range(columns)]
        crops = [canvas[:, top : top + self.side, left : left + self.side] for top, left in corners]
        masks = [mask[:, top : top + self.side, left : left + self.side] for top, left in corners]
        shown = self._patches(torch.stack([whole, *crops]))
        # The whole was put in front of the crops, but not of their masks, when the models were trained.
        shares = self._patches(torch.stack(masks)).mean(dim=-1)
        return shown, torch.cat([shares, torch.full_like(shares[:1], -1.0)])

    def _fitted(self, image: Image.Image, height: int, width: int) -> "tuple[torch.Tensor, torch.Tensor]":
        """Return an image in the middle of black ``[3, height, width]``, normalized, and where it is."""
        import numpy as np
        import torch
        from transformers.image_utils import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

        scale = min(np.float32(width) / np.float32(image.width), np.float32(height) / np.float32(image.height))
        rows, columns = (max(1, int(np.float32(length) * scale)) for length in (image.height, image.width))
        # In floating point, as trained; torch's own is wrong where what comes out is one pixel wide.
        bands = [Image.fromarray(np.asarray(band, dtype=np.float32) / 255) for band in image.split()]
        resized = [np.array(band.resize((columns, rows), Image.Resampling.BILINEAR)) for band in bands]
        top, left = (height - rows) // 2, (width - columns) // 2
        canvas, mask = torch.zeros(3, height, width), torch.zeros(1, height, width)
        canvas[:, top : top + rows, left : left + columns] = torch.from_numpy(np.stack(resized)).clip(0, 1)
        mask[:, top : top + rows, left : left + columns] = 1
        mean, std = (torch.tensor(values)[:, None, None] for values in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD))
        return (canvas - mean) / std, mask

    def _patches(self, crops: "torch.Tensor") -> "torch.Tensor":
        """Return the patches of crops ``[crops, colours, side, side]``, pixel by pixel."""
        sides = (self.side // self.patch, self.patch)
        split = crops.unflatten(3, sides).unflatten(2, sides)
        return split.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)


def config(checkpoint: Checkpoint) -> Any:
    """Return a ``LlavaConfig`` with CLIP's, whose sizes are those of the tensors."""
    from transformers import LlavaConfig

    folder, _ = checkpoint
    shapes = {name: info.shape for name, info in read_checkpoint(folder).tensors.items()}
    positions, hidden = shapes[f"{_VIT}positional_embedding"]
    patch = isqrt(shapes[f"{_VIT}patch_embedding.weight"][1] // 3)
    return LlavaConfig(
        architectures=["lmdeploy.vl.molmo_tower:MolmoTower"],
        vision_config={
            "model_type": "clip_vision_model",
            "hidden_size": hidden,
            "image_size": isqrt(positions - 1) * patch,
            "intermediate_size": shapes[f"{_VIT}transformer.resblocks.0.feed_forward.w1.weight"][0],
            "num_attention_heads": hidden // _HEAD_DIM,
            "num_hidden_layers": sum(name.startswith(_VIT) and name.endswith(".ffn_norm.weight") for name in shapes),
            "patch_size": patch,
        },
        text_config={
            "model_type": "llama",
            "hidden_size": shapes[f"{_TABLE}new_embedding"][1],
            "intermediate_size": shapes["model.vision_backbone.image_projector.w1.weight"][0],
            "num_attention_heads": 1,
        },
    )


def processor(checkpoint: Checkpoint) -> Cropper:
    """Return the processor, which cuts images into crops, as preprocessor_config.json says."""
    settings = json.loads((checkpoint[0] / "preprocessor_config.json").read_text(encoding="utf-8"))
    first, last = settings["overlap_margins"]
    side, patch = int(settings["base_image_input_size"][0]), int(settings["image_patch_size"])
    return Cropper(side, patch, int(settings["max_crops"]), (first, last))


def tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, "torch.Tensor"]]:
    """Yield the tensors by the names of :class:`lmdeploy.vl.molmo_tower.MolmoTower`."""
    import torch

    folder, raw = checkpoint
    for name, values in renamed(*_NAMES)(checkpoint):
        if not name.startswith(_TABLE):
            yield name, values
    listed = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    ids = {token["content"]: token["id"] for token in listed}
    # The table of the vocabulary, then a further one.
    size = raw.get("embedding_size") or raw["vocab_size"]
    tables = [("embedding", i) if i < size else ("new_embedding", i - size) for i in map(ids.__getitem__, _SPECIAL)]
    yield "special", torch.cat([rows_of_tensor(folder, f"{_TABLE}{table}", [row]) for table, row in tables])


def expansion(part: VisionPart, size: tuple[int, int], options: Options) -> str:
    """Return the tokens: of the whole, then of the crops, one for each end of a line and four for the ends."""
    cropper: Cropper = part.processor
    half = cropper.side // cropper.patch // 2
    rows, columns = ((count * cropper.window + sum(cropper.margins)) // 2 for count in cropper.grid(size))
    return _TOKEN * (half * (half + 1) + rows * (columns + 1) + 4)


def features(part: VisionPart, image: Image.Image, options: Options) -> "torch.Tensor":
    import torch

    cropper: Cropper = part.processor
    rows, columns = cropper.grid(image.size)
    whole, *crops = part.model(*cropper.cut(image))
    special = dict(zip(_SPECIAL, part.model.special, strict=True))

    def written(lines: torch.Tensor) -> list[torch.Tensor]:
        ends = special[_LINE_END].expand(len(lines), 1, -1)
        shown = torch.cat([lines + special[_PATCH], ends], dim=1).flatten(0, 1)
        return [special[_BEGIN][None], shown, special[_END][None]]

    shown = [
        crops[row * columns + column][cropper.kept(row, rows), cropper.kept(column, columns)]
        for row, column in itertools.product(range(rows), range(columns))
    ]
    bands = [torch.cat(shown[row * columns : (row + 1) * columns], dim=1) for row in range(rows)]
    return torch.cat(written(whole) + written(torch.cat(bands)))


FAMILY = VisionFamily(
    ("MolmoForCausalLM", "OLMoForCausalLM"),
    _TOKEN,
    expansion,
    features,
    words=(*_SPECIAL, *_OTHERS),
    other_token=_PATCH,
    native=NativeForm(config, processor, tensors),
)
