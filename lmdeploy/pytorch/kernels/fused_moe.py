"""Experts of a mixture: rows gathered by expert, two grouped products, the sum with the router's weights.

::

    ids [rows, top]  --argsort-->  pairs of (row, expert) in order of experts, in tiles of BLOCK_M of one expert each
    pairs -- gate_up[expert] --> silu and mul --> down[expert] * weight --> sum over a row's top experts

Mapping of a product: grid (tiles of pairs, tiles of outputs). The number of tiles is bounded from shapes alone (each
expert may leave one tile part empty); a tile past the last one returns at once. Bytes: the weights of every expert that
a row chose, once a tile of its pairs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lmdeploy.pytorch.kernels.gated_activation import silu_and_mul


@triton.jit
def _grouped_linear_kernel(
    x,
    weight,
    pair_weights,
    out,
    order,
    tile_expert,
    tile_begin,
    expert_end,
    outputs,
    inputs,
    x_stride,
    PAIRS_PER_ROW: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0)
    expert = tl.load(tile_expert + tile).to(tl.int64)
    if expert < 0:
        return
    index = tl.load(tile_begin + tile) + tl.arange(0, BLOCK_M)
    is_pair = index < tl.load(expert_end + expert)
    pair = tl.load(order + index, is_pair, other=0)
    row = pair // PAIRS_PER_ROW
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_column = column < outputs
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, inputs, BLOCK_K):
        channel = start + tl.arange(0, BLOCK_K)
        is_channel = channel < inputs
        a = tl.load(x + row[:, None] * x_stride + channel[None, :], is_pair[:, None] & is_channel[None, :], other=0.0)
        b = tl.load(
            weight + expert * outputs * inputs + column[None, :] * inputs + channel[:, None],
            is_column[None, :] & is_channel[:, None],
            other=0.0,
        )
        acc += tl.dot(a, b, input_precision="ieee")
    if HAS_WEIGHTS:
        acc *= tl.load(pair_weights + pair, is_pair, other=0.0).to(tl.float32)[:, None]
    tl.store(
        out + pair[:, None] * outputs + column[None, :],
        acc.to(out.dtype.element_ty),
        is_pair[:, None] & is_column[None, :],
    )


def fused_moe(
    x: torch.Tensor,  # ``[rows, hidden]``, channels adjacent
    # ``[experts, 2 * intermediate, hidden]`` (gates first) and ``[experts, hidden, intermediate]``
    gate_up: torch.Tensor,
    down: torch.Tensor,
    # ``[rows, top]``: the router's factors and its experts. An expert outside of ``[0, experts)`` adds nothing: where
    # experts are spread over ranks, others have it
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
) -> torch.Tensor:
    """Return each row's weighted sum over its experts.

    Returns ``[rows, hidden]`` of the type of ``x``.
    """
    rows, hidden = x.shape
    experts, down_inputs = gate_up.shape[0], down.shape[2]
    top = topk_ids.shape[1]
    pairs = rows * top
    block_m = min(64, max(16, triton.next_power_of_2(triton.cdiv(pairs, experts))))
    flat = topk_ids.reshape(-1).long()
    flat = torch.where((flat >= 0) & (flat < experts), flat, experts)
    order = torch.argsort(flat, stable=True)
    counts = torch.zeros(experts + 1, dtype=torch.int64, device=x.device)
    counts = counts.scatter_add_(0, flat, torch.ones_like(flat))[:experts]
    expert_end = counts.cumsum(0)
    tiles_end = ((counts + block_m - 1) // block_m).cumsum(0)
    tile = torch.arange(min(pairs, triton.cdiv(pairs, block_m) + experts), device=x.device)
    owner = torch.searchsorted(tiles_end, tile, right=True)
    known = owner.clamp(max=experts - 1)
    first_tile = torch.where(known > 0, tiles_end[(known - 1).clamp(min=0)], 0)
    tile_begin = expert_end[known] - counts[known] + (tile - first_tile) * block_m
    tile_expert = torch.where(owner < experts, owner, -1)

    def grouped(
        source: torch.Tensor, weight: torch.Tensor, factors: torch.Tensor | None, pairs_per_row: int
    ) -> torch.Tensor:
        outputs, inputs = weight.shape[1:]
        result = source.new_zeros(pairs, outputs)
        _grouped_linear_kernel[(tile.shape[0], triton.cdiv(outputs, 64))](
            source,
            weight,
            factors,
            result,
            order,
            tile_expert,
            tile_begin,
            expert_end,
            outputs,
            inputs,
            source.stride(0),
            PAIRS_PER_ROW=pairs_per_row,
            HAS_WEIGHTS=factors is not None,
            BLOCK_M=block_m,
            BLOCK_N=64,
            BLOCK_K=32,
            num_warps=4,
            num_stages=3,
        )
        return result

    middle = grouped(x, gate_up, None, top)
    activated = silu_and_mul(middle)
    assert activated.shape[1] == down_inputs
    return grouped(activated, down, topk_weights.reshape(-1).contiguous(), 1).view(rows, top, hidden).sum(1)
