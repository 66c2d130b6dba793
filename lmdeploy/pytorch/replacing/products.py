"""Products in the modelling code of ``transformers`` (routers, mostly) by the C++ engine's kernels, on CPUs.

PyTorch adds up a row's products in an order that depends on how many rows there are. A token would choose other experts
alongside others than alone.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from lmdeploy.pytorch.cpu_kernels import Kernels, Matrix


def multiply_by(kernels: Kernels) -> None:
    """Replace ``functional.linear`` in this process, for float32 on the CPU."""
    theirs = functional.linear

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if x.device.type != "cpu" or x.dtype != torch.float32 or weight.dtype != torch.float32 or weight.dim() != 2:
            return theirs(x, weight, bias)
        matrix = Matrix(weight, bias)
        return kernels.linear(matrix.native, matrix.out_features, x)

    functional.linear = linear
