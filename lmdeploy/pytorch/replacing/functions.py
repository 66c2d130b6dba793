"""Batch-invariant elementwise functions for PyTorch on CPUs.

PyTorch computes a tensor vector by vector, and what is left after the last whole ones in scalar code, whose exponential
is rounded differently: here tensors are made whole vectors first. It adds up a row's products in an order that depends
on how many rows there are, so that a router would choose other experts: here the C++ engine's kernels multiply.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from lmdeploy.pytorch.cpu_kernels import Kernels, Matrix

_WHOLE = 64  # numbers: more than any loop of PyTorch takes at a time
# Those whose scalar code gives other bits than their vectors, found by tests/pytorch/test_elementwise.py.
_FUNCTIONS = ("silu", "gelu", "softplus", "elu", "mish", "sigmoid")


def make_invariant(kernels: Kernels) -> None:
    """Replace these functions, and ``functional.linear`` of float32, in this process."""
    for name in _FUNCTIONS:
        setattr(functional, name, batch_invariant(getattr(functional, name)))
    torch.sigmoid = batch_invariant(torch.sigmoid)
    torch.Tensor.sigmoid = batch_invariant(torch.Tensor.sigmoid)
    functional.linear = linear_by(kernels, functional.linear)


def linear_by(kernels: Kernels, hf_linear: Any) -> Any:
    """Return ``functional.linear`` whose products of float32 the kernels compute."""

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != torch.float32 or weight.dim() != 2:
            return hf_linear(x, weight, bias)
        matrix = Matrix(weight, bias, is_tiled=False)
        return kernels.linear(matrix.native, matrix.out_features, x)

    return linear


def batch_invariant(function: Any) -> Any:
    """Return a function of a tensor and further arguments that computes each number in whole vectors."""

    def run(x: torch.Tensor, *more: Any, inplace: bool = False, **named: Any) -> torch.Tensor:
        if x.device.type != "cpu" or (x.is_contiguous() and x.numel() % _WHOLE == 0):
            return function(x, *more, **(named | {"inplace": True} if inplace else named))
        flat = x.flatten()
        padded = functional.pad(flat, (0, -len(flat) % _WHOLE))
        made = function(padded, *more, **named)[: len(flat)].view(x.shape)
        return x.copy_(made) if inplace else made

    return run
