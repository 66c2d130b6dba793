"""RMS norm of rows, with the addition of the residual stream before it.

Mapping: a program a row, all of it in registers. Moves a row in (two with a residual) and out (two); the sum goes back
into the residual in its own type and is normalised as stored, as two separate operators would do it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    width,
    eps,
    x_stride,
    residual_stride,
    out_stride,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    channels = tl.arange(0, BLOCK)
    mask = channels < width
    values = tl.load(x + row * x_stride + channels, mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        address = residual + row * residual_stride + channels
        values += tl.load(address, mask, other=0.0).to(tl.float32)
        stored = values.to(residual.dtype.element_ty)
        tl.store(address, stored, mask)
        values = stored.to(tl.float32)
    factor = tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    weights = tl.load(weight + channels, mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + channels, (values * factor * weights).to(out.dtype.element_ty), mask)


def rms_norm(
    x: torch.Tensor,  # ``[rows, width]``, channels adjacent
    weight: torch.Tensor,  # ``[width]``
    eps: float,
    *,
    # ``[rows, width]``: ``x`` is added to it in place, and the norm is of the sum
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return ``x / rms(x) * weight``."""
    rows, width = x.shape
    out = torch.empty_like(x)
    _rms_norm_kernel[(rows,)](
        x,
        residual,
        weight,
        out,
        width,
        eps,
        x.stride(0),
        residual.stride(0) if residual is not None else 0,
        out.stride(0),
        HAS_RESIDUAL=residual is not None,
        BLOCK=triton.next_power_of_2(width),
        num_warps=8 if width >= 4096 else 4,
    )
    return out
