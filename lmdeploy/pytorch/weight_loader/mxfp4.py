"""Loader of MXFP4 expert weights (OCP Microscaling Formats 1.0), as GPT-OSS is published."""

from __future__ import annotations

import torch

_BLOCKS, _SCALES = "_blocks", "_scales"
_SCALE_BIAS = 127
# Of the codes 0 to 7; those from 8 on are the same, negative. A sign, two bits of exponent, one of mantissa.
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def decode_stacks(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> list[str]:
    """Put the matrices ``X [experts, in, out]`` in the place of ``X_blocks`` and ``X_scales``.

    Returns what is wrong with them, a sentence each.
    """
    problems = []
    for name in [name for name in tensors if name.endswith(_BLOCKS)]:
        stack = name.removesuffix(_BLOCKS)
        blocks, scales = tensors.pop(name), tensors.pop(stack + _SCALES, None)
        if scales is None:
            problems.append(f"tensor {stack}{_SCALES} is missing")
        elif blocks.dtype != torch.uint8 or scales.dtype != torch.uint8 or blocks.shape[:-1] != scales.shape:
            problems.append(f"tensor {name} and its scales are no MXFP4: {list(blocks.shape)}, {list(scales.shape)}")
        else:
            tensors[stack] = _decoded(blocks, scales, dtype)
    return problems


def _decoded(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``[experts, in, out]`` for codes ``[experts, out, blocks, 16]``, two in a byte, the lower half first."""
    values = torch.tensor([*_VALUES, *(-value for value in _VALUES)])
    stack = torch.empty(len(blocks), blocks.shape[2] * 32, blocks.shape[1], dtype=dtype)
    for matrix, quantized, exponents in zip(stack, blocks, scales, strict=True):  # one at a time, since they are large
        pairs = torch.stack((quantized & 15, quantized >> 4), dim=-1).flatten(-2)
        factors = torch.ldexp(torch.ones(()), exponents.int() - _SCALE_BIAS)[..., None]
        matrix.copy_((values[pairs.long()] * factors).flatten(-2).t())
    return stack
