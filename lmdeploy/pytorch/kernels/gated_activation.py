"""Activation of gates times the other half: the middle of a gated MLP.

Mapping: grid (rows, tiles of BLOCK channels). Moves two values in and one out a channel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _gated_kernel(x, out, width, x_stride, out_stride, IS_GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = channels < width
    gate = tl.load(x + row * x_stride + channels, mask, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_stride + width + channels, mask, other=0.0).to(tl.float32)
    if IS_GELU:
        # (1 + tanh(a)) / 2 is the logistic function of 2 a.
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        activated = gate / (1.0 + tl.exp(-inner))
    else:
        activated = gate / (1.0 + tl.exp(-gate))
    tl.store(out + row * out_stride + channels, (activated * up).to(out.dtype.element_ty), mask)


def _gated(x: torch.Tensor, is_gelu: bool) -> torch.Tensor:
    rows, width = x.shape[0], x.shape[1] // 2
    out = x.new_empty(rows, width)
    block = min(1024, triton.next_power_of_2(width))
    _gated_kernel[(rows, triton.cdiv(width, block))](
        x, out, width, x.stride(0), out.stride(0), IS_GELU=is_gelu, BLOCK=block
    )
    return out


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """Return ``silu(gate) * up`` of rows ``[gate, up]``: ``[rows, 2 * width]`` in, ``[rows, width]`` out."""
    return _gated(x, is_gelu=False)


def gelu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """Return ``gelu(gate) * up`` of rows ``[gate, up]``, with the approximation of GELU by tanh."""
    return _gated(x, is_gelu=True)
