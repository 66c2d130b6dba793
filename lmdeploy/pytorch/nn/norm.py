"""Norms, with the addition of the residual stream before them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from lmdeploy.pytorch.nn import device as on
from lmdeploy.pytorch.nn.build_context import build_context


class RMSNorm(nn.Module):
    """``x / rms(x) * weight``.

    Parameters
    ----------
    hidden_size
        Channels.
    eps
        Added to the mean square.
    quant_config
        Not looked at: weights of norms are numbers.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        quant_config: Any = None,
    ) -> None:
        super().__init__()
        self._kernels = build_context().kernels
        self.weight = nn.Parameter(torch.empty(hidden_size, dtype=dtype, device=device), requires_grad=False)
        self._eps = float(eps)
        self._float32_weight: torch.Tensor | None = None

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of ``x``; with ``residual``, that of their sum, and the sum."""
        if on.runs_kernels(x):
            return self._forward_on_gpu(x, residual)
        total = x if residual is None else x + residual
        if self._float32_weight is None:
            self._float32_weight = self.weight.float().contiguous()
        if self._kernels is not None:
            normed = self._kernels.rms_norm(self._float32_weight, self._eps, total).to(x.dtype)
        else:
            normed = functional.rms_norm(total.float(), self.weight.shape, self._float32_weight, self._eps).to(x.dtype)
        return normed if residual is None else (normed, total)

    def _forward_on_gpu(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        from lmdeploy.pytorch.kernels.rms_norm import rms_norm

        rows = x.reshape(-1, x.shape[-1])
        total = None if residual is None else residual.reshape(-1, x.shape[-1])
        normed = rms_norm(rows, self.weight, self._eps, residual=total).view_as(x)
        return normed if total is None else (normed, total.view_as(x))


class LayerNorm(nn.Module):
    """``(x - mean(x)) / std(x) * weight + bias``."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        bias: bool = True,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size, dtype=dtype, device=device), requires_grad=False)
        self.bias: nn.Parameter | None = None
        if bias:
            self.bias = nn.Parameter(torch.empty(hidden_size, dtype=dtype, device=device), requires_grad=False)
        self._eps = float(eps)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the norm of ``x``; with ``residual``, that of their sum, and the sum."""
        total = x if residual is None else x + residual
        bias = None if self.bias is None else self.bias.float()
        normed = functional.layer_norm(total.float(), self.weight.shape, self.weight.float(), bias, self._eps)
        normed = normed.to(x.dtype)
        return normed if residual is None else (normed, total)
