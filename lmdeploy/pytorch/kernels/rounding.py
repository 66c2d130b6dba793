"""Rounding to whole numbers, for kernels."""

import triton
import triton.language as tl

# The neighbours of 1.5 * 2^23 in float32 are whole numbers.
_WHOLE = tl.constexpr(12582912.0)


@triton.jit
def round_to_even(x):
    """Return float32 ``x``, of a magnitude below 2^22, rounded to the nearest whole number, ties to even."""
    return (x + _WHOLE) - _WHOLE
