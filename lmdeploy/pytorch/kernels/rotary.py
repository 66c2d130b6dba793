"""Rotates the queries and keys of a step's rows, in place.

Mapping: grid (rows, tiles of BLOCK_H heads), tiles of queries first, then of keys; a program reads the row's cosines
and sines once for its heads. Moves each rotated channel in and out once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _rotate(
    x,
    row,
    first_head,
    heads,
    row_stride,
    head_stride,
    cos,
    sin,
    PAIRS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    head = first_head + tl.arange(0, BLOCK_H)
    pair = tl.arange(0, BLOCK_P)
    mask = (head < heads)[:, None] & (pair < PAIRS)[None, :]
    base = x + row.to(tl.int64) * row_stride + head[:, None] * head_stride
    if IS_INTERLEAVED:
        first = base + 2 * pair[None, :]
        second = first + 1
    else:
        first = base + pair[None, :]
        second = first + PAIRS
    a = tl.load(first, mask, other=0.0).to(tl.float32)
    b = tl.load(second, mask, other=0.0).to(tl.float32)
    tl.store(first, (a * cos[None, :] - b * sin[None, :]).to(x.dtype.element_ty), mask)
    tl.store(second, (b * cos[None, :] + a * sin[None, :]).to(x.dtype.element_ty), mask)


@triton.jit
def _rotary_kernel(
    query,
    key,
    cos,
    sin,
    q_heads,
    k_heads,
    q_row_stride,
    q_head_stride,
    k_row_stride,
    k_head_stride,
    angle_stride,
    Q_TILES: tl.constexpr,
    PAIRS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    row = tl.program_id(0)
    tile = tl.program_id(1)
    pair = tl.arange(0, BLOCK_P)
    c = tl.load(cos + row * angle_stride + pair, pair < PAIRS, other=0.0).to(tl.float32)
    s = tl.load(sin + row * angle_stride + pair, pair < PAIRS, other=0.0).to(tl.float32)
    if tile < Q_TILES:
        first_head = tile * BLOCK_H
        _rotate(
            query, row, first_head, q_heads, q_row_stride, q_head_stride, c, s, PAIRS, BLOCK_P, IS_INTERLEAVED, BLOCK_H
        )
    else:
        first_head = (tile - Q_TILES) * BLOCK_H
        _rotate(
            key, row, first_head, k_heads, k_row_stride, k_head_stride, c, s, PAIRS, BLOCK_P, IS_INTERLEAVED, BLOCK_H
        )


def apply_rotary(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, is_interleaved: bool = False
) -> None:
    """Rotate the first ``2 * pairs`` channels of each head in place.

    ``query``, ``key``: ``[tokens, heads, head_dim]``, channels adjacent. ``cos``, ``sin``: ``[tokens, pairs]``,
    channels adjacent and with equal strides. ``is_interleaved``: whether a pair is of neighbours, or of channels
    ``pairs`` apart.
    """
    tokens, q_heads, _ = query.shape
    k_heads = key.shape[1]
    pairs = cos.shape[-1]
    block_h = min(8, triton.next_power_of_2(max(q_heads, k_heads)))
    q_tiles = triton.cdiv(q_heads, block_h)
    _rotary_kernel[(tokens, q_tiles + triton.cdiv(k_heads, block_h))](
        query,
        key,
        cos,
        sin,
        q_heads,
        k_heads,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        cos.stride(0),
        Q_TILES=q_tiles,
        PAIRS=pairs,
        BLOCK_P=triton.next_power_of_2(pairs),
        IS_INTERLEAVED=is_interleaved,
        BLOCK_H=block_h,
    )
