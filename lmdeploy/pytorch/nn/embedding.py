"""Token embedding."""

from __future__ import annotations

import torch
from torch import nn

from lmdeploy.pytorch.cpu_kernels import Kernels, Matrix
from lmdeploy.pytorch.nn.build_context import BuildContext, build_context, building


class Embedding(nn.Module):
    """Rows of a table, whole on every rank; on a CPU as float32, which all that follows is computed in.

    Parameters
    ----------
    vocab_size, hidden_size
        Of the table.
    padding_idx
        Accepted, as ``torch.nn.Embedding`` does; it matters in training alone.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        padding_idx: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self._kernels = build_context().kernels
        self.weight = nn.Parameter(
            torch.empty(vocab_size, hidden_size, dtype=dtype, device=device), requires_grad=False
        )
        self.padding_idx = padding_idx
        self._matrix: Matrix | None = None

    @classmethod
    def of(cls, weight: nn.Parameter, kernels: Kernels | None) -> Embedding:
        """Return the embedding of a table that is there already."""
        with building(BuildContext(kernels=kernels)):
            made = cls(0, 0)
        made.weight = weight
        return made

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return ``[..., hidden]`` for token ids ``[...]``."""
        if input_ids.device.type != "cpu":
            return nn.functional.embedding(input_ids, self.weight)
        if self._kernels is None:
            return nn.functional.embedding(input_ids, self.weight).float()
        if self._matrix is None:
            self._matrix = Matrix(self.weight, is_tiled=False)
        return self._kernels.embed(self._matrix.native, self._matrix.in_features, input_ids)


def build_embedding(
    vocab_size: int,
    hidden_size: int,
    padding_idx: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Embedding:
    """Build the embedding of tokens."""
    return Embedding(vocab_size, hidden_size, padding_idx, dtype, device)
