"""Low-rank products of a step whose segments of rows use different adapters (SGMV, Chen et al. 2023, "Punica").

::

    shrink  [rows, inputs] x A[adapter] [rank, inputs]    -> [rows, max_rank] float32
    expand  [rows, max_rank] x B[adapter] [outputs, rank] -> added to [rows, outputs]

Mapping: shrink has a grid (tiles of rows, segments) and sums over all inputs in a program; expand has (tiles of rows,
segments, tiles of outputs). Bytes: an adapter's weights once a tile of its rows. Segments of adapter -1 are left alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _shrink_kernel(
    x,
    lora_a,
    out,
    starts,
    lengths,
    adapters,
    inputs,
    max_rank,
    x_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    segment = tl.program_id(1)
    adapter = tl.load(adapters + segment).to(tl.int64)
    length = tl.load(lengths + segment)
    in_segment = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    if (adapter < 0) | (tl.program_id(0) * BLOCK_M >= length):
        return
    is_row = in_segment < length
    row = tl.load(starts + segment).to(tl.int64) + in_segment
    rank = tl.arange(0, BLOCK_R)
    is_rank = rank < max_rank
    acc = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
    for start in range(0, inputs, BLOCK_K):
        channel = start + tl.arange(0, BLOCK_K)
        is_channel = channel < inputs
        a = tl.load(x + row[:, None] * x_stride + channel[None, :], is_row[:, None] & is_channel[None, :], other=0.0)
        b = tl.load(
            lora_a + (adapter * max_rank + rank)[None, :] * inputs + channel[:, None],
            is_rank[None, :] & is_channel[:, None],
            other=0.0,
        )
        acc += tl.dot(a, b.to(a.dtype), input_precision="ieee")
    tl.store(out + row[:, None] * max_rank + rank[None, :], acc, is_row[:, None] & is_rank[None, :])


@triton.jit
def _expand_kernel(
    x,
    lora_b,
    scalings,
    out,
    starts,
    lengths,
    adapters,
    outputs,
    max_rank,
    out_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    segment = tl.program_id(1)
    adapter = tl.load(adapters + segment).to(tl.int64)
    length = tl.load(lengths + segment)
    in_segment = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    if (adapter < 0) | (tl.program_id(0) * BLOCK_M >= length):
        return
    is_row = in_segment < length
    row = tl.load(starts + segment).to(tl.int64) + in_segment
    column = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = column < outputs
    rank = tl.arange(0, BLOCK_R)
    is_rank = rank < max_rank
    a = tl.load(x + row[:, None] * max_rank + rank[None, :], is_row[:, None] & is_rank[None, :], other=0.0)
    b = tl.load(
        lora_b + (adapter * outputs + column)[None, :] * max_rank + rank[:, None],
        is_column[None, :] & is_rank[:, None],
        other=0.0,
    )
    product = tl.dot(a.to(b.dtype), b, input_precision="ieee") * tl.load(scalings + adapter)
    place = out + row[:, None] * out_stride + column[None, :]
    mask = is_row[:, None] & is_column[None, :]
    tl.store(place, (tl.load(place, mask, other=0.0).to(tl.float32) + product).to(out.dtype.element_ty), mask)


def add_lora(
    out: torch.Tensor,
    x: torch.Tensor,
    lora_a: torch.Tensor,
    lora_b: torch.Tensor,
    scalings: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    adapters: torch.Tensor,
    *,
    max_length: int,
) -> torch.Tensor:
    """Add ``x @ A.T @ B.T * scaling`` of each row's adapter to ``out``, in place.

    Parameters
    ----------
    out, x
        ``[rows, outputs]`` and ``[rows, inputs]``, channels adjacent.
    lora_a, lora_b
        ``[adapters, max_rank, inputs]`` and ``[adapters, outputs, max_rank]``; rows and columns past an adapter's own
        rank are 0.
    scalings
        ``[adapters]`` float32: alpha over rank, or over its root.
    starts, lengths, adapters
        ``[segments]``: first row, rows, and adapter (-1 for none) of each segment.
    max_length
        At least the largest of ``lengths``.

    Returns
    -------
    torch.Tensor
        ``out``.
    """
    rows, inputs = x.shape
    outputs, max_rank = lora_b.shape[1:]
    segments = starts.shape[0]
    block_m = min(32, max(16, triton.next_power_of_2(max_length)))
    block_r = max(16, triton.next_power_of_2(max_rank))
    tiles = triton.cdiv(max_length, block_m)
    shrunk = torch.empty(rows, max_rank, dtype=torch.float32, device=x.device)
    _shrink_kernel[(tiles, segments)](
        x,
        lora_a,
        shrunk,
        starts,
        lengths,
        adapters,
        inputs,
        max_rank,
        x.stride(0),
        BLOCK_M=block_m,
        BLOCK_R=block_r,
        BLOCK_K=64,
        num_stages=3,
    )
    _expand_kernel[(tiles, segments, triton.cdiv(outputs, 64))](
        shrunk,
        lora_b,
        scalings,
        out,
        starts,
        lengths,
        adapters,
        outputs,
        max_rank,
        out.stride(0),
        BLOCK_M=block_m,
        BLOCK_N=64,
        BLOCK_R=block_r,
    )
    return out
