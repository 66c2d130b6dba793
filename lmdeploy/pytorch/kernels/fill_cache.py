"""Writes the keys and values of a step's rows into the paged cache, rounded to 8 or 4 bits if the cache is.

Mapping: a program a row; it holds the row's heads as two halves ``[kv_heads, head_dim / 2]``, so that a byte of the
4-bit cache is made in registers. Moves each key and value once in and once (or less) out; no arithmetic to speak of.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lmdeploy.pytorch.kernels.rounding import round_to_even


@triton.jit
def _write(
    x,
    cache,
    scales,
    slot,
    row,
    row_stride,
    head_stride,
    kv_heads,
    BLOCK_H: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BITS: tl.constexpr,
):
    half: tl.constexpr = HEAD_DIM // 2
    heads = tl.arange(0, BLOCK_H)
    channels = tl.arange(0, BLOCK_HALF)
    mask = (heads < kv_heads)[:, None] & (channels < half)[None, :]
    source = x + row.to(tl.int64) * row_stride + heads[:, None] * head_stride + channels[None, :]
    low_half = tl.load(source, mask, other=0.0)
    high_half = tl.load(source + half, mask, other=0.0)
    index = slot * kv_heads + heads
    if BITS == 16:
        target = cache + index[:, None] * HEAD_DIM + channels[None, :]
        tl.store(target, low_half, mask)
        tl.store(target + half, high_half, mask)
    else:
        largest: tl.constexpr = 255.0 if BITS == 8 else 15.0
        a = low_half.to(tl.float32)
        b = high_half.to(tl.float32)
        # Channels past the head are 0, which the range holds anyway.
        low = tl.minimum(tl.minimum(tl.min(a, 1), tl.min(b, 1)), 0.0)
        high = tl.maximum(tl.maximum(tl.max(a, 1), tl.max(b, 1)), 0.0)
        # Codes are made with the scale that is stored.
        scale = ((high - low) / largest).to(tl.float16).to(tl.float32)
        inverse = tl.where(scale > 0.0, 1.0 / tl.where(scale > 0.0, scale, 1.0), 0.0)
        zero = tl.minimum(round_to_even(-low * inverse), largest)
        value_a = tl.minimum(tl.maximum(round_to_even(a * inverse[:, None] + zero[:, None]), 0.0), largest)
        value_b = tl.minimum(tl.maximum(round_to_even(b * inverse[:, None] + zero[:, None]), 0.0), largest)
        if BITS == 8:
            target = cache + index[:, None] * HEAD_DIM + channels[None, :]
            tl.store(target, value_a.to(tl.uint8), mask)
            tl.store(target + half, value_b.to(tl.uint8), mask)
        else:
            byte = value_a.to(tl.int32) | (value_b.to(tl.int32) << 4)
            tl.store(cache + index[:, None] * half + channels[None, :], byte.to(tl.uint8), mask)
        tl.store(scales + index * 2, scale.to(tl.float16), heads < kv_heads)
        tl.store(scales + index * 2 + 1, zero.to(tl.float16), heads < kv_heads)


@triton.jit
def _fill_kernel(
    key,
    value,
    k_cache,
    v_cache,
    k_scales,
    v_scales,
    slots,
    k_row_stride,
    k_head_stride,
    v_row_stride,
    v_head_stride,
    kv_heads,
    BLOCK_H: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_K_HALF: tl.constexpr,
    BLOCK_V_HALF: tl.constexpr,
    BITS: tl.constexpr,
):
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    if slot >= 0:
        _write(
            key, k_cache, k_scales, slot, row, k_row_stride, k_head_stride, kv_heads, BLOCK_H, K_DIM, BLOCK_K_HALF, BITS
        )
        _write(
            value,
            v_cache,
            v_scales,
            slot,
            row,
            v_row_stride,
            v_head_stride,
            kv_heads,
            BLOCK_H,
            V_DIM,
            BLOCK_V_HALF,
            BITS,
        )


def fill_cache(
    # ``[tokens, kv_heads, head_dim]``, channels adjacent; head dimensions are even
    key: torch.Tensor,
    value: torch.Tensor,
    # The cache as `cache_layout` describes it
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,  # ``[tokens]`` int64 of `slot_mapping`; a token of slot -1 is not written
    *,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
    bits: int = 16,  # of the cache: 16 stands for any floating type
) -> None:
    """Write a step's keys and values into the cache."""
    tokens, kv_heads, k_dim = key.shape
    v_dim = value.shape[-1]
    _fill_kernel[(tokens,)](
        key,
        value,
        k_cache,
        v_cache,
        k_scales,
        v_scales,
        slots,
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
        kv_heads,
        BLOCK_H=triton.next_power_of_2(kv_heads),
        K_DIM=k_dim,
        V_DIM=v_dim,
        BLOCK_K_HALF=triton.next_power_of_2(k_dim // 2),
        BLOCK_V_HALF=triton.next_power_of_2(v_dim // 2),
        BITS=bits,
    )
