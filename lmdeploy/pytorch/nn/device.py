"""Choice of the operators' device."""

import torch


def runs_kernels(x: torch.Tensor) -> bool:
    """Return whether the kernels in the Triton language take a tensor: it is on a GPU."""
    return bool(x.is_cuda)
