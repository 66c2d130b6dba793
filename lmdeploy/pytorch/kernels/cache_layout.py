"""Layout of keys and values in the paged cache, and its readers in kernels.

::

    cache   [blocks, block_len, kv_heads, head_dim]         16 (or 32) bit: the values
            [blocks, block_len, kv_heads, head_dim]         8 bit, uint8:   codes
            [blocks, block_len, kv_heads, head_dim / 2]     4 bit, uint8:   byte i has channel i in its low half and
                                                                            channel i + head_dim / 2 in its high half
    scales  [blocks, block_len, kv_heads, 2]                8 and 4 bit, float16: (scale, zero) of a token's head

A code c stands for ``(c - zero) * scale``. The range that is rounded holds 0, so zero is itself a code, and a value of
0 comes back as 0. Keys and values have a cache each, whose head dimensions may differ.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

CACHE_BITS = (16, 8, 4)


def cache_channels(head_dim: int, bits: int) -> int:
    """Return how many elements of the cache a head of a token takes."""
    return head_dim // 2 if bits == 4 else head_dim


def slot_mapping(
    # ``[spans]``: a span's first token, its tokens, and those in the cache after this step
    q_start_loc: torch.Tensor,
    q_seqlens: torch.Tensor,
    kv_seqlens: torch.Tensor,
    block_offsets: torch.Tensor,  # ``[spans, blocks]``: the cache blocks of each span, in order of positions
    num_tokens: int,  # of the step; spans cover the first of them, in order. Rows of none (padding) get slot -1
    block_len: int,  # tokens a block
) -> torch.Tensor:
    """Return the slot of the cache that each token of a step writes, once a step for all layers.

    Returns ``[tokens]`` int64: ``block * block_len + place in the block``.
    """
    token = torch.arange(num_tokens, device=q_start_loc.device)
    span = torch.searchsorted(q_start_loc.contiguous(), token, right=True).sub(1).clamp(min=0)
    position = token - q_start_loc[span] + (kv_seqlens - q_seqlens)[span]
    block = block_offsets[span, (position // block_len).clamp(0, block_offsets.shape[1] - 1)]
    slot = block.long() * block_len + position % block_len
    return torch.where(token < q_start_loc[span] + q_seqlens[span], slot, -1)


@triton.jit
def load_heads(
    cache,
    scales,
    slots,
    is_valid,
    kv_head,
    kv_heads,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BITS: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Return the head of each slot, ``[slots, BLOCK_D]`` in DTYPE; zeros where not ``is_valid`` and past HEAD_DIM."""
    channels = tl.arange(0, BLOCK_D)
    mask = is_valid[:, None] & (channels < HEAD_DIM)[None, :]
    index = slots * kv_heads + kv_head
    if BITS == 16:
        heads = tl.load(cache + index[:, None] * HEAD_DIM + channels[None, :], mask, other=0.0).to(DTYPE)
    else:
        if BITS == 8:
            quantized = tl.load(cache + index[:, None] * HEAD_DIM + channels[None, :], mask, other=0).to(tl.float32)
        else:
            half: tl.constexpr = HEAD_DIM // 2
            byte = tl.load(cache + index[:, None] * half + (channels % half)[None, :], mask, other=0).to(tl.int32)
            quantized = ((byte >> (channels // half * 4)[None, :]) & 15).to(tl.float32)
        scale = tl.load(scales + index * 2, is_valid, other=0.0).to(tl.float32)
        zero = tl.load(scales + index * 2 + 1, is_valid, other=0.0).to(tl.float32)
        heads = ((quantized - zero[:, None]) * scale[:, None]).to(DTYPE)
    return heads


@triton.jit
def soft_capped(scores, softcap):
    """Return ``softcap * tanh(scores / softcap)``."""
    return softcap * (1.0 - 2.0 / (1.0 + tl.exp(2.0 * scores / softcap)))
