"""Layers as plain matrix products in float64, for references of models that `transformers` does not have."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor


class PlainLayers:
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
