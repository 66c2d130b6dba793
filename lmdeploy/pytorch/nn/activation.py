"""Activations of gated MLPs: ``[..., gate, up]`` in, half as wide out."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from lmdeploy.pytorch.nn import device as on
from lmdeploy.pytorch.nn.build_context import build_context


class SiluAndMul(nn.Module):
    """``silu(gate) * up``."""

    def __init__(self, inplace: bool = True) -> None:
        super().__init__()
        self._kernels = build_context().kernels
        self._inplace = inplace

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[..., size]`` for ``[..., 2 * size]``; ``x`` may be used up if ``inplace``."""
        if on.runs_kernels(x):
            from lmdeploy.pytorch.kernels.gated_activation import silu_and_mul

            return silu_and_mul(x.reshape(-1, x.shape[-1])).unflatten(0, x.shape[:-1])
        if self._kernels is not None and x.dtype == torch.float32:
            return self._kernels.silu_and_mul(x)
        gate, up = x.chunk(2, -1)
        return functional.silu(gate, inplace=self._inplace).mul_(up)


class GeluAndMul(nn.Module):
    """``gelu(gate) * up``.

    Parameters
    ----------
    approximate
        ``tanh``, or ``none`` for the error function.
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate must be 'none' or 'tanh', got {approximate!r}")
        self._approximate = approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``[..., size]`` for ``[..., 2 * size]``."""
        if on.runs_kernels(x) and self._approximate == "tanh":
            from lmdeploy.pytorch.kernels.gated_activation import gelu_and_mul

            return gelu_and_mul(x.reshape(-1, x.shape[-1])).unflatten(0, x.shape[:-1])
        gate, up = x.chunk(2, -1)
        return functional.gelu(gate, approximate=self._approximate).mul_(up)
