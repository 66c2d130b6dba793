"""Float64 layers for references of models that `transformers` lacks, and layers with other weights for images."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


class ReferenceLayers:
    """The layers of a checkpoint, by the names of its tensors."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = {name: values.double() for name, values in tensors.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def linear(self, x: Tensor, name: str) -> Tensor:
        """Return a linear layer of rows, or a convolution of one place; with a bias if there is one."""
        product = x @ self[f"{name}.weight"].flatten(1).T
        bias = self._tensors.get(f"{name}.bias")
        return product if bias is None else product + bias

    def norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        """Return layer-normed rows."""
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)
        return scaled * self[f"{name}.weight"] + self[f"{name}.bias"]


def tensors_below(directory: Path, prefix: str) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint whose names begin so, by the rest of their names."""
    tensors = load_file(directory / "model.safetensors")
    return {name.removeprefix(prefix): values for name, values in tensors.items() if name.startswith(prefix)}


def seeing_logits(text: Any, ids: Sequence[int], token: int, rows: Iterable[Tensor]) -> Tensor:
    """Return a text model's logits [tokens, vocab], ``rows`` in place of the embeddings of one of its tokens."""
    embeddings = text.model.embed_tokens.weight[torch.tensor(ids)].detach().clone()
    positions = [position for position, other in enumerate(ids) if other == token]
    with torch.inference_mode():
        for index, row in zip(positions, rows, strict=True):
            embeddings[index] = row
        logits: Tensor = text(inputs_embeds=embeddings[None]).logits[0]
    return logits


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Return attention of queries over keys and values, head by head."""
    size = q.shape[-1] // heads
    found = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        found.append(torch.softmax(q[:, part] @ k[:, part].T / math.sqrt(size), dim=-1) @ v[:, part])
    return torch.cat(found, dim=-1)


def resized(image: Image.Image, side: int) -> np.ndarray:
    """Return an image as CLIP takes it: line, column, colour."""
    pixels = np.asarray(image.resize((side, side), Image.Resampling.BICUBIC)) / 255.0
    return np.asarray((pixels - np.array(CLIP_MEAN)) / np.array(CLIP_STD))


def patches(pixels: np.ndarray, side: int) -> Tensor:
    """Return the squares of pixels in reading order, each colour, line, column ``[squares, 3 * side * side]``."""
    height, width, _ = pixels.shape
    squares = [
        pixels[top : top + side, left : left + side].transpose(2, 0, 1)
        for top in range(0, height, side)
        for left in range(0, width, side)
    ]
    return torch.from_numpy(np.stack(squares)).flatten(1)


def shapes_of(layers: Mapping[str, list[int]], norms: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the shapes of weights and biases of linear layers ``[outputs, inputs, ...]`` and of norms."""
    shapes = {f"{name}.weight": size for name, size in layers.items()}
    shapes |= {f"{name}.bias": size[:1] for name, size in layers.items()}
    return shapes | {f"{name}.{kind}": [size] for name, size in norms.items() for kind in ("weight", "bias")}


@dataclass
class ImageRows:
    """Which tokens of the text that is run are of images."""

    positions: list[int] = field(default_factory=list)


class SplitLinear(nn.Module):  # type: ignore[misc]
    """A linear layer, with ``change`` from inputs and outputs of the rows of images to what they give instead."""

    def __init__(self, text: nn.Module, rows: ImageRows, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.text, self.rows, self.change = text, rows, change

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of a batch of one text ``[1, tokens, outputs]``."""
        y: Tensor = self.text(x).clone()
        positions = self.rows.positions
        if positions:
            y[0, positions] = self.change(x[0, positions], y[0, positions])
        return y


def instead(weight: Tensor, bias: Tensor | None = None) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a layer with other weights."""

    def change(x: Tensor, y: Tensor) -> Tensor:
        product = x @ weight.double().T
        return product if bias is None else product + bias.double()

    return change


def added(down: Tensor, up: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a layer's low-rank update."""
    return lambda x, y: y + x @ down.double().T @ up.double().T


def split(
    model: nn.Module, names: Sequence[str], change: Callable[[str], Callable[[Tensor, Tensor], Tensor]]
) -> ImageRows:
    """Have the linear layers of a model whose names end so compute what ``change`` of their whole names says."""
    rows = ImageRows()
    found = [name for name, _ in model.named_modules() if name.endswith(tuple(names))]
    for name in found:
        parent, _, attribute = name.rpartition(".")
        whole = model.get_submodule(parent)
        setattr(whole, attribute, SplitLinear(getattr(whole, attribute), rows, change(name)))
    return rows
