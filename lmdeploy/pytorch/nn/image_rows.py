"""Separate weights of a linear layer for image tokens.

In steps with image tokens (`StepContext.own_rows`) a `Linear` calls its ``for_images``: other weights (visual experts;
Wang et al., 2023, arXiv 2311.03079), or additional low-rank weights (partial LoRA; Dong et al., 2024, arXiv
2401.16420).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

Multiply = Callable[[torch.Tensor], torch.Tensor]


class ForImages(nn.Module):
    """Base class: the weights of a linear layer for image tokens."""

    def forward(self, text: Multiply, x: torch.Tensor, images: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """Return ``[1, tokens, outputs]``.

        Parameters
        ----------
        text
            The linear layer without ``for_images``, for text tokens.
        x
            ``[1, tokens, inputs]``.
        images, others
            Indices of image tokens and of the other tokens, int64.
        """
        raise NotImplementedError


class OwnWeights(ForImages):
    """Weights that replace those of text; each token is multiplied once, with its own weights."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, text: Multiply, x: torch.Tensor, images: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """Return ``[1, tokens, outputs]``."""
        seen = self.linear(x[:, images])
        if not len(others):
            return seen
        y = seen.new_empty(*x.shape[:-1], seen.shape[-1])
        y[:, images], y[:, others] = seen, text(x[:, others])
        return y


class LowRank(nn.Module):
    """A low-rank linear layer: ``up(down(x))``."""

    def __init__(self, down: nn.Module, up: nn.Module) -> None:
        super().__init__()
        self.down, self.up = down, up

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[..., outputs]`` for ``[..., inputs]``."""
        product: torch.Tensor = self.up(self.down(x))
        return product


class LowRankSum(ForImages):
    """Low-rank layers whose outputs are added to those of the text weights.

    Parameters
    ----------
    parts
        One per layer that the linear layer fuses, in the order of their outputs.
    """

    def __init__(self, parts: Sequence[LowRank]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, text: Multiply, x: torch.Tensor, images: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """Return ``[1, tokens, outputs]``."""
        y, rows = text(x), x[:, images]
        y[:, images] += torch.cat([part(rows) for part in self.parts], -1)
        return y


def give_own_weights(text: nn.Module, images: nn.Module) -> None:
    """Give the linear layers among a module's children those of another module as weights for image tokens."""
    for name, linear in images.named_children():
        if hasattr(linear, "for_images"):
            getattr(text, name).for_images = OwnWeights(linear)
