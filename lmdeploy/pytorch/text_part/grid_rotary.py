"""Rotations of models whose positions are a frame, a row and a column (M-RoPE): each pair is turned by one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from lmdeploy.pytorch.step_context import get_step_ctx_manager
from lmdeploy.pytorch.text_part.tensors import text_tensors


class GridRotaryEmbedding(nn.Module):
    """In the place of a rotary embedding, which turns every pair by the same number.

    Parameters
    ----------
    rotary
        It: ``(x, positions [1, rows])`` to cosines and sines ``[1, rows, dim]``, both halves equal.
    axes
        Which number of a position turns each pair, ``dim / 2`` of them.
    """

    def __init__(self, rotary: nn.Module, axes: tuple[int, ...]) -> None:
        super().__init__()
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


def swap_grid_rotaries(model: Any, checkpoint: Path) -> None:
    """Put ours in the place of a model's rotary embeddings, where the text part's positions have three numbers."""
    text = text_tensors(checkpoint)
    if text is None or not text.axes:
        return
    for name, module in list(model.named_modules()):
        if hasattr(module, "inv_freq"):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, GridRotaryEmbedding(module, text.axes))
