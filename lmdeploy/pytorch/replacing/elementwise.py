"""Elementwise functions of PyTorch on CPUs, so that a number's result does not depend on where in a tensor it is.

PyTorch computes a tensor vector by vector, and what is left after the last whole ones in scalar code, whose exponential
is rounded differently. A token's result would then depend on how many tokens are in front of it and after it. Here
tensors are made whole vectors first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_WHOLE = 64  # numbers: more than any loop of PyTorch takes at a time
# Those whose scalar code gives other bits than their vectors, found by tests/pytorch/test_elementwise.py.
_FUNCTIONS = ("silu", "gelu", "softplus", "elu", "mish", "sigmoid")


def make_independent_of_place() -> None:
    """Replace these functions of PyTorch in this process."""
    for name in _FUNCTIONS:
        setattr(functional, name, independent_of_place(getattr(functional, name)))
    torch.sigmoid = independent_of_place(torch.sigmoid)
    torch.Tensor.sigmoid = independent_of_place(torch.Tensor.sigmoid)


def independent_of_place(function: Any) -> Any:
    """Return a function of a tensor and further arguments that computes each number in whole vectors."""

    def run(x: torch.Tensor, *more: Any, inplace: bool = False, **named: Any) -> torch.Tensor:
        if x.device.type != "cpu" or (x.is_contiguous() and x.numel() % _WHOLE == 0):
            return function(x, *more, **(named | {"inplace": True} if inplace else named))
        flat = x.flatten()
        padded = functional.pad(flat, (0, -len(flat) % _WHOLE))
        made = function(padded, *more, **named)[: len(flat)].view(x.shape)
        return x.copy_(made) if inplace else made

    return run
