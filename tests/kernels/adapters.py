"""Low-rank adapters for tests of operators, and the float64 matrix that each stands for."""

from dataclasses import dataclass
from typing import Any

import torch

from tests.kernels.weights import FORMATS

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Adapter:
    """What one adapter adds to a layer.

    Attributes
    ----------
    native, native_format
        As the compiled module takes it.
    exact
        ``[out_features, in_features]`` float64: scale B A.
    magnitude
        The same of absolute values, which bounds how far sums of it may be off.
    """

    native: Any
    native_format: int
    exact: torch.Tensor
    magnitude: torch.Tensor


def make_adapter(kind: str, in_features: int, out_features: int, parts: list[tuple[int, int, int, float]]) -> Adapter:
    """Return a random adapter of numbers of type ``kind``.

    ``parts`` are (first output, outputs, rank, scale).
    """
    dtype = _DTYPES[kind]
    bits = torch.int32 if kind == "float32" else torch.int16
    exact = torch.zeros(out_features, in_features, dtype=torch.float64)
    magnitude = exact.clone()
    downs, native_parts, first_rank = [], [], 0
    for first_out, outputs, rank, scale in parts:
        down = torch.randn(rank, in_features).to(dtype)
        up = torch.randn(outputs, rank).to(dtype)
        rows = slice(first_out, first_out + outputs)
        exact[rows] = scale * up.double() @ down.double()
        magnitude[rows] = abs(scale) * up.double().abs() @ down.double().abs()
        downs.append(down)
        native_parts.append((up.T.contiguous().view(bits).numpy(), first_out, first_rank, scale))
        first_rank += rank
    return Adapter((torch.cat(downs).view(bits).numpy(), native_parts), FORMATS[kind], exact, magnitude)
