"""Self-check of quantized linear layers: products that have no rounding but the result's.

Rows, codes and scales are small integers and powers of two, so that every sum is exact in float32 and rows are what
their 8-bit codes say.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from lmdeploy.pytorch.start.trust import is_trusted

_INPUTS, _OUTPUTS = 256, 80
_ROWS = (3, 40)  # one tile of rows, and some
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # output 8 i + j is this nibble of word i
_TYPE = torch.float16  # of rows and results, which stay below its largest

Product = tuple[torch.Tensor, torch.Tensor]  # what a kernel gives, and float64


@cache
def uses_native(kind: str) -> bool:
    """Return whether our kernel multiplies with codes of a kind (`awq`, `int8`, `fp8`), or PyTorch with numbers."""
    make = {"awq": _awq, "int8": _int8, "fp8": _fp8}[kind]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return is_trusted("codes", lambda: _difference(make, device), f"linear layers on {kind} codes")


def _difference(make: Callable[[torch.Generator, int, torch.device], Product], device: torch.device) -> str:
    random = torch.Generator().manual_seed(2)
    for rows in _ROWS:
        got, expected = make(random, rows, device)
        off = (got.double().cpu() - expected).abs() - torch.finfo(_TYPE).eps * expected.abs()
        if not float(off.max()) <= 0:
            return f"products of {rows} rows differ from float64 by {float(off.max()):.3g} more than they may"
    return ""


def _integers(random: torch.Generator, largest: int, *shape: int) -> torch.Tensor:
    return torch.randint(-largest, largest + 1, shape, generator=random)


def _powers(random: torch.Generator, largest: int, *shape: int) -> torch.Tensor:
    """Return powers of two, of this exponent and the four below it."""
    return torch.exp2(_integers(random, 2, *shape).float() + largest - 2)


def _awq(random: torch.Generator, rows: int, device: torch.device) -> Product:
    from lmdeploy.pytorch.kernels.awq_linear import awq_linear

    group = 64
    x, bias = _integers(random, 8, rows, _INPUTS).to(_TYPE), _integers(random, 9, _OUTPUTS).to(_TYPE)
    quantized = _integers(random, 7, _INPUTS, _OUTPUTS) + 8
    zeros = _integers(random, 7, _INPUTS // group, _OUTPUTS) + 8
    scales = _powers(random, 0, _INPUTS // group, _OUTPUTS)

    def packed(nibbles: torch.Tensor) -> torch.Tensor:
        shifts = 4 * torch.tensor(_AWQ_ORDER)
        words = (nibbles.unflatten(1, (-1, 8)) << shifts).sum(-1)
        return torch.where(words >= 1 << 31, words - (1 << 32), words).int()

    weight = (quantized - zeros.repeat_interleave(group, 0)) * scales.double().repeat_interleave(group, 0)
    given = (x, packed(quantized), packed(zeros), scales.half(), bias)
    return awq_linear(*(tensor.to(device) for tensor in given)), x.double() @ weight + bias.double()


def _int8(random: torch.Generator, rows: int, device: torch.device) -> Product:
    from lmdeploy.pytorch.kernels.int8_linear import int8_linear, quantize_rows_int8

    x = _integers(random, 126, rows, _INPUTS).to(_TYPE)
    x[:, 7] = 127.0  # so that a row's scale is 1
    weight, scales = _integers(random, 127, _OUTPUTS, _INPUTS), _powers(random, -7, _OUTPUTS)
    bias = _integers(random, 9, _OUTPUTS).to(_TYPE)
    quantized = quantize_rows_int8(x.to(device))
    rest = (tensor.to(device) for tensor in (weight.to(torch.int8), scales, bias))
    expected = x.double() @ (weight * scales.double()[:, None]).T + bias.double()
    return int8_linear(*quantized, *rest, dtype=_TYPE), expected


def _fp8(random: torch.Generator, rows: int, device: torch.device) -> Product:
    from lmdeploy.pytorch.kernels.fp8_linear import GROUP, fp8_linear, quantize_rows_fp8

    x = _integers(random, 15, rows, _INPUTS).to(_TYPE)
    x[:, ::GROUP] = 448.0  # so that the scale of each 128 channels is 1
    weight = _integers(random, 15, _OUTPUTS, _INPUTS)
    scales = _powers(random, 0, -(-_OUTPUTS // GROUP), _INPUTS // GROUP)
    bias = _integers(random, 9, _OUTPUTS).to(_TYPE)
    quantized = quantize_rows_fp8(x.to(device))
    rest = (tensor.to(device) for tensor in (weight.to(torch.float8_e4m3fn), scales, bias))
    factors = scales.double().repeat_interleave(GROUP, 0)[:_OUTPUTS].repeat_interleave(GROUP, 1)
    return fp8_linear(*quantized, *rest, dtype=_TYPE), x.double() @ (weight * factors).T + bias.double()
