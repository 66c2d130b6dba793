"""Image inputs of a text part besides its own code: rotations by three numbers, features in its layers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lmdeploy.pytorch.step_context import get_step_ctx_manager
from lmdeploy.pytorch.text_part.tensors import text_tensors


def let_see(model: Any, checkpoint: Path) -> None:
    """Let a model that is a text part rotate by frame, row and column, and its first layers add features of images."""
    text = text_tensors(checkpoint)
    if text is None:
        return
    for name, module in list(model.named_modules()) if text.axes else ():
        if hasattr(module, "inv_freq"):
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, GridRotaryEmbedding(module, text.axes))
    if text.deeper_layers:
        layers = next(
            module
            for name, module in model.named_modules()
            if name.rpartition(".")[2] == "layers" and isinstance(module, nn.ModuleList)
        )
        for number in range(text.deeper_layers):
            layers[number].register_forward_hook(partial(_add, number))


class GridRotaryEmbedding(nn.Module):
    """In the place of a rotary embedding, which turns every pair by the same number.

    ``axes``: which number of a position turns each pair, ``dim / 2`` of them.
    """

    def __init__(self, rotary: nn.Module, axes: tuple[int, ...]) -> None:
        super().__init__()
        # It: ``(x, positions [1, rows])`` to cosines and sines ``[1, rows, dim]``, both halves equal
        self._rotary = rotary
        self.register_buffer("_axes", torch.tensor(axes * 2), persistent=False)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines as the rotary embedding does, by the positions of the step that runs."""
        grid = get_step_ctx_manager().current_context().grid_positions
        if grid is None:
            found: tuple[torch.Tensor, torch.Tensor] = self._rotary(x, position_ids)
            return found
        by_axis = [self._rotary(x, positions[None]) for positions in grid]
        cosines, sines = (torch.stack(parts) for parts in zip(*by_axis, strict=True))
        chosen = self._axes.expand(1, *cosines.shape[1:])
        return cosines.gather(0, chosen)[0], sines.gather(0, chosen)[0]


def _add(number: int, _: nn.Module, __: Any, output: Any) -> Any:
    step = get_step_ctx_manager().current_context()
    if step.deeper_embeddings is None:
        return output
    # Layers of ours return what is still to be added to the residual stream, and the stream.
    hidden = output if isinstance(output, torch.Tensor) else output[0]
    deeper = step.deeper_embeddings[:, number].to(hidden.dtype)
    hidden[step.input_embedding_indexing] = hidden[step.input_embedding_indexing] + deeper
    return output
