"""Prefill attention over the paged cache, for whole prompts and chunks.

Mapping: grid (tiles of BLOCK_M rows, heads, spans); a program keeps its rows' queries and sums in registers and walks
over the cached positions its rows may see, BLOCK_N at a time, with one pass softmax (Milakov and Gimelshein, 2018).
Keys and values of the chunk itself are in the cache already (`fill_cache`), so a first chunk and a later one are one
case. Bytes: every tile of rows reads the visible cache once, for each query head; operations: 4 * head_dim a visible
pair and head.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lmdeploy.pytorch.kernels.cache_layout import load_heads, soft_capped

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["table_stride"])
def _prompt_kernel(
    query,
    k_cache,
    v_cache,
    k_scales,
    v_scales,
    sinks,
    out,
    q_start_loc,
    q_seqlens,
    kv_seqlens,
    block_offsets,
    scale,
    softcap,
    window,
    kv_heads,
    block_len,
    table_stride,
    q_row_stride,
    q_head_stride,
    out_row_stride,
    out_head_stride,
    GROUP: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BITS: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    tile = tl.program_id(0)
    head = tl.program_id(1)
    span = tl.program_id(2)
    q_len = tl.load(q_seqlens + span)
    if tile * BLOCK_M >= q_len:
        return
    context = tl.load(kv_seqlens + span)
    first_token = tl.load(q_start_loc + span).to(tl.int64)
    in_span = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    is_query = in_span < q_len
    position = context - q_len + in_span
    k_channels = tl.arange(0, BLOCK_K)
    v_channels = tl.arange(0, BLOCK_V)
    q = tl.load(
        query + (first_token + in_span)[:, None] * q_row_stride + head * q_head_stride + k_channels[None, :],
        is_query[:, None] & (k_channels < K_DIM)[None, :],
        other=0.0,
    )

    begin = 0
    end = context
    if IS_CAUSAL:
        end = tl.minimum(context, context - q_len + (tile + 1) * BLOCK_M)
    if HAS_WINDOW:
        begin = tl.maximum(context - q_len + tile * BLOCK_M - window + 1, 0) // BLOCK_N * BLOCK_N

    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    for start in range(begin, end, BLOCK_N):
        key_position = start + tl.arange(0, BLOCK_N)
        is_key = key_position < end
        block = tl.load(block_offsets + span * table_stride + key_position // block_len, is_key, other=0).to(tl.int64)
        slots = block * block_len + key_position % block_len
        k = load_heads(k_cache, k_scales, slots, is_key, head // GROUP, kv_heads, K_DIM, BLOCK_K, BITS, q.dtype)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if HAS_SOFTCAP:
            scores = soft_capped(scores, softcap)
        visible = is_query[:, None] & is_key[None, :]
        if IS_CAUSAL:
            visible = visible & (key_position[None, :] <= position[:, None])
        if HAS_WINDOW:
            visible = visible & (key_position[None, :] > position[:, None] - window)
        scores = tl.where(visible, scores * _LOG2E, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen nothing yet (its window begins later) keeps sums of 0.
        reference = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp2(scores - reference[:, None])
        decay = tl.exp2(largest - reference)
        total = total * decay + tl.sum(weights, 1)
        v = load_heads(v_cache, v_scales, slots, is_key, head // GROUP, kv_heads, V_DIM, BLOCK_V, BITS, q.dtype)
        acc = acc * decay[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        largest = new_largest
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * _LOG2E
        new_largest = tl.maximum(largest, sink)
        decay = tl.exp2(largest - new_largest)
        total = total * decay + tl.exp2(sink - new_largest)
        acc = acc * decay[:, None]
    result = acc / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(
        out + (first_token + in_span)[:, None] * out_row_stride + head * out_head_stride + v_channels[None, :],
        result.to(out.dtype.element_ty),
        is_query[:, None] & (v_channels < V_DIM)[None, :],
    )


def prompt_attention(
    query: torch.Tensor,  # ``[tokens, heads, head_dim]``, channels adjacent
    # The cache as `cache_layout` describes it, with the step's own keys and values in it
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    # As `slot_mapping` takes them
    q_start_loc: torch.Tensor,
    q_seqlens: torch.Tensor,
    kv_seqlens: torch.Tensor,
    block_offsets: torch.Tensor,
    *,
    max_q_len: int,  # at least the largest of ``q_seqlens``
    v_dim: int,  # channels of a head of the values
    scale: float,  # factor of the scores
    window: int = 0,  # a row sees this many positions, its own the last; 0 for all
    softcap: float = 0.0,  # scores become ``softcap * tanh(score / softcap)``; 0 for as they are
    sinks: torch.Tensor | None = None,  # ``[heads]``: a score more in each softmax, with a value of 0
    is_causal: bool = True,  # whether a row sees none of the positions after it
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
    bits: int = 16,
    out: torch.Tensor | None = None,  # where the result goes
) -> torch.Tensor:
    """Return the attention of a step's tokens over all that is cached of their sequences.

    Returns ``[tokens, heads, v_dim]`` of the query's type.
    """
    tokens, heads, k_dim = query.shape
    kv_heads = k_cache.shape[2]
    if out is None:
        out = query.new_empty(tokens, heads, v_dim)
    is_large = max(k_dim, v_dim) > 128 or query.dtype == torch.float32
    block_m = 16 if max_q_len <= 16 else 32 if is_large else 64
    _prompt_kernel[(triton.cdiv(max_q_len, block_m), heads, q_seqlens.shape[0])](
        query,
        k_cache,
        v_cache,
        k_scales,
        v_scales,
        sinks,
        out,
        q_start_loc,
        q_seqlens,
        kv_seqlens,
        block_offsets,
        scale,
        softcap,
        window,
        kv_heads,
        k_cache.shape[1],
        block_offsets.stride(0),
        query.stride(0),
        query.stride(1),
        out.stride(0),
        out.stride(1),
        GROUP=heads // kv_heads,
        K_DIM=k_dim,
        V_DIM=v_dim,
        BLOCK_K=max(16, triton.next_power_of_2(k_dim)),
        BLOCK_V=max(16, triton.next_power_of_2(v_dim)),
        BITS=bits,
        IS_CAUSAL=is_causal,
        HAS_WINDOW=window > 0,
        HAS_SOFTCAP=softcap > 0.0,
        HAS_SINKS=sinks is not None,
        BLOCK_M=block_m,
        BLOCK_N=32 if is_large else 64,
        num_warps=8 if bits < 16 and block_m == 64 else 4,  # codes take registers
        num_stages=2,
    )
    return out
