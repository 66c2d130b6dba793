"""Low-rank adapters for tests of operators, and the float64 matrix that each stands for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.kernels.device import Device
from tests.kernels.weights import FORMATS

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Adapter:
    """Low-rank update of a layer.

    ``native``: the fields of its ``LoraWeight``; ``rank``: of all parts together; ``exact``: ``[out_features,
    in_features]`` float64: scale B A; ``magnitude``: the same of absolute values, which bounds how far sums of it may
    be off.
    """

    native: tuple[Any, ...]
    rank: int
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
        native_parts.append((up.T.contiguous().view(bits), first_out, outputs, first_rank, rank, scale))
        first_rank += rank
    native = (torch.cat(downs).view(bits), native_parts, len(parts), first_rank, FORMATS[kind])
    return Adapter(native, first_rank, exact, magnitude)


def adapted(
    device: Device, x: torch.Tensor, y: torch.Tensor, adapters: Sequence[Adapter], of_row: Sequence[int]
) -> torch.Tensor:
    """Return ``y`` ``[rows, out]`` with what the adapter of each row of ``x`` ``[rows, in]`` adds; -1: none."""
    layers = [[(None, None, 0, 0, 0), adapter.native] for adapter in adapters]  # the second is run
    max_rank = max(adapter.rank for adapter in adapters)
    rows = ([None if adapter < 0 else layers[adapter] for adapter in of_row], 1, len(x), max_rank)
    shrunk, out = torch.full((len(x), max_rank), 1e30), y.clone()
    device.native.lora_shrink(rows, x, x.shape[1], shrunk)
    device.native.lora_expand(rows, shrunk, y.shape[1], out)
    return out
