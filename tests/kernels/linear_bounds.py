"""How far a linear operator's results may be from float64, as kernels/linear.h and kernels/cuda/linear/linear.h say.

On the CPU: float32 sums of exact products, n 2^-24 sum |x w| for n terms in any order (Higham, 2002, 3.5); with codes
of 8 or 4 bits x is rounded to 8 bits for each group of inputs, by at most max |x| / 254; with float8 and bfloat16 to
bfloat16, where the instruction set multiplies those.

On CUDA: the rounding of x (and, widened, of the weight) to 16 bits, relative 2^-9 for bfloat16 and 2^-11 for half
precision each, half precision's absolute step of 2^-24 / 2 times the 16 that x is divided by, and float32 sums, a
matrix instruction perhaps truncating where float32 rounds. From 192 rows on, where scales are those of whole outputs, x
is rounded to 8 bits row by row: int8 by at most half of max |x| / 127; float8 by 2^-4 relatively, or, where it is
small, by 2^-10 of max |x| / 448.
"""

from itertools import pairwise

import torch

from tests.kernels.device import BF16_PRODUCTS, Device
from tests.kernels.weights import SCALED, Weight

EPS = 2.0**-24
STEPS = {"float32": 0.0, "bfloat16": 2.0**-9, "float16": 2.0**-11, "int8": 2.0**-11, "int4": 2.0**-11}  # on CUDA
MANY_ROWS = 192  # kDequantizeRows in kernels/cuda/linear/linear.cu


def _input_steps(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Return the largest error of rounding x to 8 bits for each group, ``[rows, out_features]``."""
    order = slice(None) if weight.order is None else weight.order.long()
    pad = (0, -x.shape[1] % weight.group)
    inputs = torch.nn.functional.pad(x[:, order].abs(), pad).view(len(x), -1, weight.group)
    weights = torch.nn.functional.pad(weight.exact[:, order].abs(), pad).view(len(weight.exact), -1, weight.group)
    return (inputs.amax(-1) / 254) @ weights.sum(-1).T * (1 + 2.0**-10)


def _on_cpu(device: Device, x: torch.Tensor, weight: Weight, kind: str, size: torch.Tensor) -> torch.Tensor:
    sums = (x.shape[1] + 2) * EPS * size
    if kind.startswith("int"):
        return _input_steps(x, weight) + 2 * sums
    rounding_isas = {"float8": BF16_PRODUCTS, "bfloat16": BF16_PRODUCTS}
    if device.isa in rounding_isas.get(kind.split()[0], ()):
        return 2.0**-8 * size + 2 * sums
    return sums


def _on_cuda(x: torch.Tensor, weight: Weight, kind: str, size: torch.Tensor) -> torch.Tensor:
    weights = weight.exact.abs().sum(1)
    sums = (x.shape[1] + 2) * 2.0**-23 * size
    smallest = 16 * 2.0**-25 * weights
    if kind in STEPS:
        return 2 * STEPS[kind] * size + sums + (0 if STEPS[kind] == 0 else smallest)
    top = x.abs().amax(1, keepdim=True)
    if len(x) >= MANY_ROWS and kind.startswith("int8"):
        return top / 254 * weights * (1 + 2.0**-10) + sums
    # A block as wide as all inputs is one scale an output.
    is_scaled_by_output = "block" not in kind or SCALED[kind][1][1] >= x.shape[1]
    if len(x) >= MANY_ROWS and is_scaled_by_output:
        return 2.0**-4 * size + top / 448 * 2.0**-10 * weights + sums
    return 2 * 2.0**-11 * size + smallest + sums


def bound_of(
    device: Device, x: torch.Tensor, weight: Weight, kind: str, before: torch.Tensor | None = None
) -> torch.Tensor:
    """Return how far each result for ``x``, float64, may be off; the arguments are those of :func:`check`."""
    size = x.abs() @ weight.exact.abs().T
    bound = _on_cuda(x, weight, kind, size) if device.is_cuda else _on_cpu(device, x, weight, kind, size)
    return bound + 2.0**-22 * (weight.bias.abs() + (0 if before is None else before.double().abs()))


def check(
    device: Device, y: torch.Tensor, x: torch.Tensor, weight: Weight, kind: str, before: torch.Tensor | None = None
) -> None:
    """Compare ``y`` with ``before`` plus ``x`` times the weight; ``kind`` is its format, or how it is scaled."""
    x = x.double()
    added = weight.bias + (0 if before is None else before.double())
    bound = bound_of(device, x, weight, kind, before)
    error = (y.double() - x @ weight.exact.T - added).abs()
    assert (error <= bound).all(), f"{(error / bound).max():.2f} of the bound"


def check_broken_rows(device: Device, weight: Weight, x: torch.Tensor) -> None:
    """Put NaN and infinity into rows 4 and 5 of ``x``, of at least 34 inputs, and see that only theirs are broken."""
    clean = [row for row in range(len(x)) if row not in (4, 5)]
    expected = device.linear(weight, x)[clean]
    x[4, 7], x[5, 33] = float("nan"), float("inf")
    y = device.linear(weight, x)
    assert torch.equal(y[clean], expected)
    assert y[4].isnan().all()
    assert not y[5].isfinite().any()


def check_rows_are_alone(device: Device, weight: Weight, x: torch.Tensor) -> None:
    """See that rows of ``x`` come to the same bits in parts as together."""
    together = device.linear(weight, x)
    edges = [0, 1, 3, 10, len(x) * 2 // 3, len(x)]
    for first, last in pairwise(edges):
        assert torch.equal(device.linear(weight, x[first:last]), together[first:last])
