"""W8A8: rows rounded to int8 each with its own scale, and the product with int8 weights.

``quantize_rows_int8``: a program a row; moves 2 bytes in and 1 out a value. ``int8_linear``: grid (tiles of rows, tiles
of outputs); int8 tensor-core products summed exactly in int32, then both scales at once. Decoding is bound by the
weights' ``out * in`` bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from lmdeploy.pytorch.kernels.rounding import round_to_even


@triton.jit
def _quantize_kernel(x, quantized, scales, width, x_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    channels = tl.arange(0, BLOCK)
    mask = channels < width
    values = tl.load(x + row * x_stride + channels, mask, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(values), 0)
    scale = largest / 127.0
    inverse = tl.where(largest > 0.0, 127.0 / tl.where(largest > 0.0, largest, 1.0), 0.0)
    tl.store(quantized + row * width + channels, round_to_even(values * inverse).to(tl.int8), mask)
    tl.store(scales + row, scale)


@triton.jit(do_not_specialize=["rows"])
def _int8_linear_kernel(
    quantized,
    row_scales,
    weight,
    weight_scales,
    bias,
    out,
    rows,
    outputs,
    inputs,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row = row < rows
    is_column = column < outputs
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.int32)
    for start in range(0, inputs, BLOCK_K):
        channel = start + tl.arange(0, BLOCK_K)
        is_channel = channel < inputs
        a = tl.load(
            quantized + row.to(tl.int64)[:, None] * inputs + channel[None, :],
            is_row[:, None] & is_channel[None, :],
            other=0,
        )
        b = tl.load(
            weight + column.to(tl.int64)[None, :] * inputs + channel[:, None],
            is_column[None, :] & is_channel[:, None],
            other=0,
        )
        acc += tl.dot(a, b, out_dtype=tl.int32)
    row_scale = tl.load(row_scales + row, is_row, other=0.0)
    column_scale = tl.load(weight_scales + column, is_column, other=0.0).to(tl.float32)
    result = acc.to(tl.float32) * row_scale[:, None] * column_scale[None, :]
    if HAS_BIAS:
        result += tl.load(bias + column, is_column, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + row.to(tl.int64)[:, None] * outputs + column[None, :],
        result.to(out.dtype.element_ty),
        is_row[:, None] & is_column[None, :],
    )


def quantize_rows_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each row of ``x`` ``[rows, inputs]`` to int8, ties to even, its largest magnitude to 127.

    Returns codes ``[rows, inputs]`` int8, and scales ``[rows]`` float32; a value is about ``code * scale``.
    """
    rows, width = x.shape
    quantized = torch.empty(rows, width, dtype=torch.int8, device=x.device)
    scales = torch.empty(rows, dtype=torch.float32, device=x.device)
    _quantize_kernel[(rows,)](
        x, quantized, scales, width, x.stride(0), BLOCK=triton.next_power_of_2(width), num_warps=8
    )
    return quantized, scales


def int8_linear(
    # ``[rows, inputs]`` int8 and ``[rows]`` float32, of `quantize_rows_int8`
    quantized: torch.Tensor,
    row_scales: torch.Tensor,
    # ``[outputs, inputs]`` int8 and ``[outputs]``
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None = None,  # ``[outputs]``
    *,
    dtype: torch.dtype = torch.float16,  # of the result ``[rows, outputs]``
) -> torch.Tensor:
    """Return ``(codes @ weight.T) * row_scales * weight_scales + bias``."""
    rows, inputs = quantized.shape
    outputs = weight.shape[0]
    out = torch.empty(rows, outputs, dtype=dtype, device=quantized.device)
    block_m = min(64, max(16, triton.next_power_of_2(rows)))
    _int8_linear_kernel[(triton.cdiv(rows, block_m), triton.cdiv(outputs, 64))](
        quantized,
        row_scales,
        weight,
        weight_scales,
        bias,
        out,
        rows,
        outputs,
        inputs,
        HAS_BIAS=bias is not None,
        BLOCK_M=block_m,
        BLOCK_N=64,
        BLOCK_K=128,
        num_warps=4,
        num_stages=3,
    )
    return out
