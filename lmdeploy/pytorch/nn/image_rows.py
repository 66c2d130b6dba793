"""Rows of images that take other weights than those of text in a linear layer.

A `Linear` asks what its ``for_images`` holds in steps with such rows (`StepContext.own_rows`): weights in place of its
own (visual experts; Wang et al., 2023, arXiv 2311.03079), or low-rank matrices that are added (partial LoRA; Dong et
al., 2024, arXiv 2401.16420).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

Multiply = Callable[[torch.Tensor], torch.Tensor]


class ForImages(nn.Module):
    """What a linear layer has for rows of images."""

    def forward(self, text: Multiply, x: torch.Tensor, images: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """Return ``[1, tokens, outputs]``.

        Parameters
        ----------
        text
            What the layer computes of rows of text.
        x
            ``[1, tokens, inputs]``.
        images, others
            The rows that take weights of images, and those that do not, int64.
        """
        raise NotImplementedError


class OwnWeights(ForImages):
    """Weights in place of those of text; each group of rows is multiplied once, with its own."""

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
    """A product with two matrices, to a low rank and from it."""

    def __init__(self, down: nn.Module, up: nn.Module) -> None:
        super().__init__()
        self.down, self.up = down, up

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[..., outputs]`` for ``[..., inputs]``."""
        product: torch.Tensor = self.up(self.down(x))
        return product


class LowRankSum(ForImages):
    """Low-rank products that are added to what the weights of text give.

    Parameters
    ----------
    parts
        One for each of the layers that the linear layer joins, in the order of their outputs.
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
    """Let the linear layers of a module, which are its children, multiply rows of images as those of another do."""
    for name, linear in images.named_children():
        if hasattr(linear, "for_images"):
            getattr(text, name).for_images = OwnWeights(linear)
