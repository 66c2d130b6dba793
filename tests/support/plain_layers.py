"""Layers as plain matrix products in float64, for references of models that `transformers` does not have."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor


class PlainLayers:
    """The layers of a checkpoint, by the names of its tensors."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = {name: values.double() for name, values in tensors.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def linear(self, x: Tensor, name: str) -> Tensor:
        """Return what a linear layer, or a convolution of one place, makes of rows; with a bias if there is one."""
        product = x @ self[f"{name}.weight"].flatten(1).T
        bias = self._tensors.get(f"{name}.bias")
        return product if bias is None else product + bias

    def norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        """Return layer-normed rows."""
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)
        return scaled * self[f"{name}.weight"] + self[f"{name}.bias"]


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Return what queries find in keys and values, head by head."""
    size = q.shape[-1] // heads
    found = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        found.append(torch.softmax(q[:, part] @ k[:, part].T / math.sqrt(size), dim=-1) @ v[:, part])
    return torch.cat(found, dim=-1)
