"""Linear layer with 4-bit weights as AWQ checkpoints store them (``version`` gemm).

::

    qweight [inputs, outputs / 8] int32     output 8 i + j is nibble (0, 4, 1, 5, 2, 6, 3, 7)[j] of word i
    qzeros  [inputs / group, outputs / 8]   packed in the same order
    scales  [inputs / group, outputs]       a weight is (code - zero) * scale

Mapping: grid (tiles of rows, tiles of outputs); weights become values of the rows' type in registers, products are
tensor cores'. Decoding is bound by the codes' ``out * in / 2`` bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def _awq_linear_kernel(
    x,
    qweight,
    qzeros,
    scales,
    bias,
    out,
    rows,
    outputs,
    inputs,
    x_stride,
    GROUP: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row = row < rows
    is_column = column < outputs
    words = outputs // 8
    word = column // 8
    shift = (column % 8 // 2 + column % 2 * 4) * 4
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, inputs, BLOCK_K):
        channel = start + tl.arange(0, BLOCK_K)
        is_channel = channel < inputs
        group = start // GROUP
        a = tl.load(
            x + row.to(tl.int64)[:, None] * x_stride + channel[None, :],
            is_row[:, None] & is_channel[None, :],
            other=0.0,
        )
        packed = tl.load(
            qweight + channel.to(tl.int64)[:, None] * words + word[None, :],
            is_channel[:, None] & is_column[None, :],
            other=0,
        )
        zero = (tl.load(qzeros + group * words + word, is_column, other=0) >> shift) & 15
        scale = tl.load(scales + group * outputs + column, is_column, other=0.0).to(tl.float32)
        quantized = (packed >> shift[None, :]) & 15
        b = ((quantized - zero[None, :]).to(tl.float32) * scale[None, :]).to(a.dtype)
        acc += tl.dot(a, b, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias + column, is_column, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + row.to(tl.int64)[:, None] * outputs + column[None, :],
        acc.to(out.dtype.element_ty),
        is_row[:, None] & is_column[None, :],
    )


def awq_linear(
    x: torch.Tensor,
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return ``x @ weight + bias`` for ``x`` ``[rows, inputs]`` and the packed weight described above.

    Raises `ValueError` if the group size is no multiple of 16.
    """
    rows, inputs = x.shape
    outputs = scales.shape[1]
    group = inputs // scales.shape[0]
    block_k = next((size for size in (64, 32, 16) if group % size == 0), 0)
    if not block_k:
        raise ValueError(f"the group size of AWQ weights must be a multiple of 16, got {group}")
    out = x.new_empty(rows, outputs)
    block_m = min(64, max(16, triton.next_power_of_2(rows)))
    _awq_linear_kernel[(triton.cdiv(rows, block_m), triton.cdiv(outputs, 64))](
        x,
        qweight,
        qzeros,
        scales,
        bias,
        out,
        rows,
        outputs,
        inputs,
        x.stride(0),
        GROUP=group,
        HAS_BIAS=bias is not None,
        BLOCK_M=block_m,
        BLOCK_N=64,
        BLOCK_K=block_k,
        num_warps=4,
        num_stages=3,
    )
    return out
