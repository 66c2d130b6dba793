"""Decode attention over the paged cache, one row a sequence, split over the context.

Mapping: grid (spans, kv_heads * tiles of query heads, splits); a program reads its part of the context once for all
query heads of the tile that share the key head, and leaves unnormalised sums, their largest score and their total in a
workspace. A second kernel, grid (spans, heads), joins the parts (and the sinks). The number of parts depends on the
launch alone, their lengths on each sequence's context, so a captured graph stays right as contexts grow.

Bytes: the visible cache once (once a tile of BLOCK_H query heads), and the workspace, ``splits * heads * (v_dim + 2)``
float32 a span, twice; operations: 4 * head_dim a position and query head, far below the bytes' time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lmdeploy.pytorch.kernels.cache_layout import load_heads, soft_capped

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["table_stride"])
def _split_kernel(
    query,
    k_cache,
    v_cache,
    k_scales,
    v_scales,
    sums,
    stats,
    kv_seqlens,
    block_offsets,
    scale,
    softcap,
    window,
    heads,
    kv_heads,
    block_len,
    table_stride,
    q_row_stride,
    q_head_stride,
    GROUP: tl.constexpr,
    HEAD_TILES: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BITS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    span = tl.program_id(0)
    kv_head = tl.program_id(1) // HEAD_TILES
    split = tl.program_id(2)
    in_group = tl.program_id(1) % HEAD_TILES * BLOCK_H + tl.arange(0, BLOCK_H)
    is_head = in_group < GROUP
    head = kv_head * GROUP + in_group
    k_channels = tl.arange(0, BLOCK_K)
    v_channels = tl.arange(0, BLOCK_V)
    context = tl.load(kv_seqlens + span)
    q = tl.load(
        query + span.to(tl.int64) * q_row_stride + head[:, None] * q_head_stride + k_channels[None, :],
        is_head[:, None] & (k_channels < K_DIM)[None, :],
        other=0.0,
    )
    first = tl.zeros_like(context)
    if HAS_WINDOW:
        first = tl.maximum(context - window, 0)
    part = tl.cdiv(tl.cdiv(context - first, SPLITS), BLOCK_N) * BLOCK_N
    begin = first + split * part
    end = tl.minimum(begin + part, context)

    largest = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, BLOCK_V], tl.float32)
    for start in range(begin, end, BLOCK_N):
        key_position = start + tl.arange(0, BLOCK_N)
        is_key = key_position < end
        block = tl.load(block_offsets + span * table_stride + key_position // block_len, is_key, other=0).to(tl.int64)
        slots = block * block_len + key_position % block_len
        k = load_heads(k_cache, k_scales, slots, is_key, kv_head, kv_heads, K_DIM, BLOCK_K, BITS, q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if HAS_SOFTCAP:
            scores = soft_capped(scores, softcap)
        scores = tl.where(is_key[None, :], scores * _LOG2E, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - new_largest[:, None])
        decay = tl.exp2(largest - new_largest)
        total = total * decay + tl.sum(weights, 1)
        v = load_heads(v_cache, v_scales, slots, is_key, kv_head, kv_heads, V_DIM, BLOCK_V, BITS, q.dtype)
        acc = acc * decay[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        largest = new_largest
    index = (span.to(tl.int64) * heads + head) * SPLITS + split
    tl.store(sums + index[:, None] * V_DIM + v_channels[None, :], acc, is_head[:, None] & (v_channels < V_DIM)[None, :])
    tl.store(stats + index * 2, largest, is_head)
    tl.store(stats + index * 2 + 1, total, is_head)


@triton.jit
def _join_kernel(
    sums,
    stats,
    sinks,
    out,
    heads,
    out_row_stride,
    out_head_stride,
    V_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    span = tl.program_id(0)
    head = tl.program_id(1)
    channels = tl.arange(0, BLOCK_V)
    index = (span.to(tl.int64) * heads + head) * SPLITS + tl.arange(0, SPLITS)
    largest = tl.load(stats + index * 2)
    total = tl.load(stats + index * 2 + 1)
    reference = tl.max(largest, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * _LOG2E
        reference = tl.maximum(reference, sink)
    # A padding span has no context: sums of 0.
    reference = tl.where(reference == float("-inf"), 0.0, reference)
    decay = tl.exp2(largest - reference)
    denominator = tl.sum(total * decay, 0)
    if HAS_SINKS:
        denominator += tl.exp2(sink - reference)
    parts = tl.load(sums + index[:, None] * V_DIM + channels[None, :], (channels < V_DIM)[None, :], other=0.0)
    result = tl.sum(parts * decay[:, None], 0) / tl.where(denominator > 0.0, denominator, 1.0)
    target = out + span.to(tl.int64) * out_row_stride + head * out_head_stride + channels
    tl.store(target, result.to(out.dtype.element_ty), channels < V_DIM)


def decoding_attention(
    query: torch.Tensor,  # ``[spans, heads, head_dim]``, channels adjacent: row i belongs to span i
    # The cache as `cache_layout` describes it, with the rows' own keys and values in it
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    # As `slot_mapping` takes them
    kv_seqlens: torch.Tensor,
    block_offsets: torch.Tensor,
    *,
    # As in `prompt_attention`
    v_dim: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
    bits: int = 16,
    # Parts of the context, a power of two; by default enough for some four programs on each of 128 processors
    splits: int | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the attention of one row a span over all that is cached of its sequence.

    Returns ``[spans, heads, v_dim]`` of the query's type.
    """
    spans, heads, k_dim = query.shape
    kv_heads = k_cache.shape[2]
    group = heads // kv_heads
    block_h = min(64 if max(k_dim, v_dim) <= 128 else 16, max(16, triton.next_power_of_2(group)))
    head_tiles = triton.cdiv(group, block_h)
    if splits is None:
        splits = min(16, triton.next_power_of_2(triton.cdiv(512, max(1, spans * kv_heads * head_tiles))))
    if out is None:
        out = query.new_empty(spans, heads, v_dim)
    sums = torch.empty(spans, heads, splits, v_dim, dtype=torch.float32, device=query.device)
    stats = torch.empty(spans, heads, splits, 2, dtype=torch.float32, device=query.device)
    block_v = max(16, triton.next_power_of_2(v_dim))
    _split_kernel[(spans, kv_heads * head_tiles, splits)](
        query,
        k_cache,
        v_cache,
        k_scales,
        v_scales,
        sums,
        stats,
        kv_seqlens,
        block_offsets,
        scale,
        softcap,
        window,
        heads,
        kv_heads,
        k_cache.shape[1],
        block_offsets.stride(0),
        query.stride(0),
        query.stride(1),
        GROUP=group,
        HEAD_TILES=head_tiles,
        K_DIM=k_dim,
        V_DIM=v_dim,
        BLOCK_K=max(16, triton.next_power_of_2(k_dim)),
        BLOCK_V=block_v,
        BITS=bits,
        HAS_WINDOW=window > 0,
        HAS_SOFTCAP=softcap > 0.0,
        SPLITS=splits,
        BLOCK_H=block_h,
        BLOCK_N=32,
        num_warps=4,
        num_stages=2,
    )
    _join_kernel[(spans, heads)](
        sums,
        stats,
        sinks,
        out,
        heads,
        out.stride(0),
        out.stride(1),
        V_DIM=v_dim,
        BLOCK_V=block_v,
        HAS_SINKS=sinks is not None,
        SPLITS=splits,
    )
    return out
