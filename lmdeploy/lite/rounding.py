"""Rounding a matrix to codes that share a scale and a zero point in groups of neighbouring inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Grid:
    """The numbers a matrix may be rounded to.

    Attributes
    ----------
    bits
        Of a code.
    group
        Neighbouring inputs that share a scale; divides the number of inputs.
    is_symmetric
        True: the zero point is the middle code; False: it is chosen so that the codes span smallest to largest number.
    """

    bits: int
    group: int
    is_symmetric: bool


@dataclass(frozen=True)
class Rounded:
    """A matrix ``[out, in]`` as codes ``[out, in]`` with zero points and half scales ``[out, in / group]``."""

    codes: Tensor
    zeros: Tensor
    scales: Tensor

    def numbers(self) -> Tensor:
        """Return what the codes stand for, ``[out, in]`` float32."""
        out_features, groups = self.scales.shape
        steps = self.codes.view(out_features, groups, -1) - self.zeros[:, :, None]
        return (steps * self.scales.float()[:, :, None]).view(out_features, -1)


def round_matrix(weight: Tensor, grid: Grid, limits: tuple[Tensor, Tensor] | None = None) -> Rounded:
    """Return ``weight`` ``[out, in]`` float32 rounded to the nearest codes.

    Parameters
    ----------
    weight
        The matrix.
    grid
        How codes are laid out.
    limits
        Smallest and largest number of each group, ``[out, groups]``; what is beyond is cut off. Default: the numbers'
        own.
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
    codes = ((grouped / scales.float()[:, :, None]).round() + zeros[:, :, None]).clamp(0, top)
    return Rounded(codes.view(out_features, -1), zeros, scales)


def limits_of(weight: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return smallest and largest number of each group, ``[out, groups]``; zero is always between them."""
    grouped = weight.view(weight.shape[0], -1, grid.group)
    return grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)


def to_half_scales(scales: Tensor) -> Tensor:
    """Return scales as they are stored; a group of zeros gets the smallest scale that has all its digits."""
    return scales.clamp(min=float(torch.finfo(torch.float16).tiny)).half()
