"""FP8 (e4m3) linear: rows rounded with a scale for each 128 channels, weights with one for each block of 128 x 128.

The layout of checkpoints whose ``quant_method`` is ``fp8`` with ``weight_block_size`` [128, 128]. Needs a GPU that has
the type, compute capability 8.9 or later; Triton's interpreter has it, too.

``quantize_rows_fp8``: grid (rows, groups of 128 channels). ``fp8_linear``: grid (tiles of rows, tiles of outputs); each
128 channels are summed by tensor cores, then scaled into float32. Decoding is bound by the weights' ``out * in`` bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

GROUP = 128
_LARGEST = tl.constexpr(448.0)  # of e4m3


@triton.jit
def _quantize_kernel(x, quantized, scales, width, groups, x_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    channels = group * BLOCK + tl.arange(0, BLOCK)
    mask = channels < width
    values = tl.load(x + row * x_stride + channels, mask, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(values), 0)
    scale = tl.where(largest > 0.0, largest / _LARGEST, 1.0)
    # Rounding of the quotient may pass the largest value by a bit.
    scaled = tl.minimum(tl.maximum(values / scale, -_LARGEST), _LARGEST)
    tl.store(quantized + row * width + channels, scaled.to(quantized.dtype.element_ty), mask)
    tl.store(scales + row * groups + group, scale)


@triton.jit(do_not_specialize=["rows"])
def _fp8_linear_kernel(
    quantized,
    row_scales,
    weight,
    weight_scales,
    bias,
    out,
    rows,
    outputs,
    inputs,
    groups,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    is_row = row < rows
    is_column = column < outputs
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for group in range(groups):
        channel = group * BLOCK_K + tl.arange(0, BLOCK_K)
        is_channel = channel < inputs
        a = tl.load(
            quantized + row.to(tl.int64)[:, None] * inputs + channel[None, :],
            is_row[:, None] & is_channel[None, :],
            other=0.0,
        )
        b = tl.load(
            weight + column.to(tl.int64)[None, :] * inputs + channel[:, None],
            is_column[None, :] & is_channel[:, None],
            other=0.0,
        )
        row_scale = tl.load(row_scales + row * groups + group, is_row, other=0.0)
        column_scale = tl.load(weight_scales + column // BLOCK_K * groups + group, is_column, other=0.0)
        acc += tl.dot(a, b) * row_scale[:, None] * column_scale[None, :]
    if HAS_BIAS:
        acc += tl.load(bias + column, is_column, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + row.to(tl.int64)[:, None] * outputs + column[None, :],
        acc.to(out.dtype.element_ty),
        is_row[:, None] & is_column[None, :],
    )


def quantize_rows_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round each 128 channels of ``x`` ``[rows, inputs]`` to e4m3, their largest magnitude to 448.

    Returns codes ``[rows, inputs]`` float8_e4m3fn, and scales ``[rows, ceil(inputs / 128)]`` float32.
    """
    rows, width = x.shape
    groups = triton.cdiv(width, GROUP)
    quantized = torch.empty(rows, width, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, groups, dtype=torch.float32, device=x.device)
    _quantize_kernel[(rows, groups)](x, quantized, scales, width, groups, x.stride(0), BLOCK=GROUP, num_warps=1)
    return quantized, scales


def fp8_linear(
    # Of `quantize_rows_fp8`
    quantized: torch.Tensor,
    row_scales: torch.Tensor,
    # ``[outputs, inputs]`` float8_e4m3fn, and ``[ceil(outputs / 128), ceil(inputs / 128)]`` float32
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None = None,  # ``[outputs]``
    *,
    dtype: torch.dtype = torch.float16,  # of the result ``[rows, outputs]``
) -> torch.Tensor:
    """Return the product of rounded rows and weights, each times its scale, plus ``bias``."""
    rows, inputs = quantized.shape
    outputs = weight.shape[0]
    out = torch.empty(rows, outputs, dtype=dtype, device=quantized.device)
    block_m = min(64, max(16, triton.next_power_of_2(rows)))
    _fp8_linear_kernel[(triton.cdiv(rows, block_m), triton.cdiv(outputs, 64))](
        quantized,
        row_scales,
        weight,
        weight_scales,
        bias,
        out,
        rows,
        outputs,
        inputs,
        row_scales.shape[1],
        HAS_BIAS=bias is not None,
        BLOCK_M=block_m,
        BLOCK_N=64,
        BLOCK_K=GROUP,
        num_warps=4,
        num_stages=3,
    )
    return out
