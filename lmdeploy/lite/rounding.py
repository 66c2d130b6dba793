"""Group-wise quantization of a matrix: neighbouring inputs share a scale and a zero point."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lmdeploy.lite.settings import WHOLE_ROW


@dataclass(frozen=True)
class Grid:
    """The numbers a matrix may be rounded to."""

    bits: int  # of a code
    group: int  # neighbouring inputs that share a scale; divides the number of inputs
    # True: the zero point is the middle code; False: it is chosen so that the codes span smallest to largest number
    is_symmetric: bool


@dataclass(frozen=True)
class Rounded:
    """A matrix ``[out, in]`` as codes ``[out, in]`` with zero points and half scales ``[out, in / group]``."""

    quantized: Tensor
    zeros: Tensor
    scales: Tensor

    def numbers(self) -> Tensor:
        """Return the dequantized values, ``[out, in]`` float32."""
        out_features, groups = self.scales.shape
        steps = self.quantized.view(out_features, groups, -1) - self.zeros[:, :, None]
        return (steps * self.scales.float()[:, :, None]).view(out_features, -1)


def round_matrix(weight: Tensor, grid: Grid, limits: tuple[Tensor, Tensor] | None = None) -> Rounded:
    """Return ``weight`` ``[out, in]`` float32 rounded to the nearest codes.

    ``grid``: how codes are laid out. ``limits``: smallest and largest number of each group, ``[out, groups]``; what is
    beyond is cut off. Default: the numbers' own.
    """
    out_features = weight.shape[0]
    grouped = weight.view(out_features, -1, grid.group)
    low, high = limits if limits is not None else limits_of(weight, grid)
    top = 2**grid.bits - 1
    if grid.is_symmetric:
        largest = torch.maximum(-low, high)
        scales = to_half_scales(largest / (top // 2))
        zeros = torch.full_like(scales, (top + 1) // 2, dtype=torch.float32)
    else:
        scales = to_half_scales((high - low) / top)
        zeros = (-low / scales.float()).round().clamp(0, top)
    quantized = ((grouped / scales.float()[:, :, None]).round() + zeros[:, :, None]).clamp(0, top)
    return Rounded(quantized.view(out_features, -1), zeros, scales)


def limits_of(weight: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return smallest and largest number of each group, ``[out, groups]``; zero is always between them."""
    grouped = weight.view(weight.shape[0], -1, grid.group)
    return grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)


def to_half_scales(scales: Tensor) -> Tensor:
    """Return scales as they are stored; a group of zeros gets the smallest scale that has all its digits."""
    return scales.clamp(min=float(torch.finfo(torch.float16).tiny)).half()


# How many neighbouring inputs of a weight share a scale.
logger = logging.getLogger(__name__)

USUAL = (128, 64, 32, 16, 8)


def fitting_group_size(requested: int | None, shapes: Mapping[str, tuple[int, int]]) -> int:
    """Return the size of groups for weights ``[out, in]``: that requested, or the largest usual one that fits them all.

    Raises `ValueError` if that requested does not divide every layer's inputs; names a weight and the sizes that do.
    """
    fitting = [size for size in USUAL if all(columns % size == 0 for _, columns in shapes.values())]
    if requested is None:
        size = fitting[0] if fitting else WHOLE_ROW
        logger.info("w_group_size is %d, the largest that divides the inputs of every layer", size)
        return size
    if requested == WHOLE_ROW:
        return requested
    for name, (_, columns) in shapes.items():
        if columns % requested:
            sizes = ", ".join(map(str, (WHOLE_ROW, *fitting)))
            raise ValueError(
                f"{name} has {columns} inputs, no multiple of w_group_size {requested}; these would do: {sizes}; "
                "without w_group_size the largest of them is taken"
            )
    return requested
