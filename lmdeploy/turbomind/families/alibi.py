"""Slopes of ALiBi (Press et al., 2022): attention with linear biases instead of rotation."""

import math


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Return the slope of each head: powers of 2^(-8 / n), n a power of 2; further heads are between them."""
    power = 1 << int(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    between = [2.0 ** (-4.0 * (head + 1) / power) for head in range(0, 2 * (num_heads - power), 2)]
    return tuple(slopes + between)
