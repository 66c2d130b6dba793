"""Activation-aware weight quantization: which inputs to scale up before rounding, and where to cut weights off.

After Lin et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration" (MLSys 2024). Inputs
that carry much have their weights multiplied by ``s > 1`` before rounding, so that these are rounded more finely, and
the inputs are divided by ``s`` where they are made. The paper measures errors on outputs; here they are computed from
the inputs' second moments ``H = mean x x^T``, as ``E |(W' - W) x|^2 = sum of (W' - W) H (W' - W)^T`` over its diagonal.
So the cost does not grow with the calibration text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lmdeploy.lite.rounding import Grid, limits_of, round_matrix

FIXED_RATIO = 0.5  # of the paper's grid; near the best one for most layers
RATIOS = tuple(i / 20 for i in range(20))
_SMALLEST_CUT = 0.5  # the least part of a group's range that is kept
_CUTS = 10


@dataclass
class InputMoments:
    """What is remembered of the inputs of a linear layer.

    Attributes
    ----------
    second
        Mean of ``x x^T``, ``[in, in]`` float32.
    magnitude
        Mean of ``|x|``, ``[in]`` float32.
    """

    second: Tensor
    magnitude: Tensor
    count: int = 0

    @classmethod
    def empty(cls, features: int, device: torch.device) -> "InputMoments":
        """Return the moments of no inputs."""
        return cls(torch.zeros(features, features, device=device), torch.zeros(features, device=device))

    def add(self, x: Tensor) -> None:
        """Take note of inputs ``[..., in]``."""
        rows = x.detach().reshape(-1, x.shape[-1]).float()
        total = self.count + len(rows)
        kept = self.count / total
        self.second.addmm_(rows.T, rows, beta=kept, alpha=1 / total)
        self.magnitude.mul_(kept).add_(rows.abs().sum(0) / total)
        self.count = total

    def divide_by(self, scales: Tensor) -> None:
        """Become the moments of the same inputs divided by ``scales`` ``[in]``."""
        self.second.div_(scales[:, None]).div_(scales)
        self.magnitude.div_(scales)


def output_error(change: Tensor, moments: InputMoments) -> Tensor:
    """Return the mean square of what a change ``[out, in]`` of a weight does to the outputs, summed over them."""
    return ((change @ moments.second) * change).sum()


def scales_of(moments: InputMoments, ratio: float, tie: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the factor of each input, ``[in]``, for a ratio from 0 (none) to 1 (as much as it carries).

    ``tie`` makes inputs equal that must have the same factor.
    """
    scales = tie(moments.magnitude).clamp(min=1e-4).pow(ratio)
    return scales / (scales.max() * scales.min()).sqrt()


def search_scales(
    weights: Sequence[Tensor],
    moments: InputMoments,
    grid: Grid,
    ratios: Sequence[float],
    tie: Callable[[Tensor], Tensor] = lambda values: values,
) -> Tensor:
    """Return the factors ``[in]`` with the least error of layers with the same inputs.

    Parameters
    ----------
    weights
        Of the layers, ``[out, in]`` each.
    moments
        Of their inputs.
    grid
        What the weights will be rounded to.
    ratios
        To choose from, see :func:`scales_of`.
    tie
        Makes inputs equal that must have the same factor.
    """
    best, least = torch.ones_like(moments.magnitude), float("inf")
    for ratio in ratios:
        scales = scales_of(moments, ratio, tie)
        error = 0.0
        for weight in weights:
            rounded = round_matrix(weight * scales, grid).numbers() / scales
            error += float(output_error(rounded - weight, moments))
        if error < least:
            best, least = scales, error
    return best


def search_limits(weight: Tensor, moments: InputMoments, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return where to cut off the groups of a weight ``[out, in]``: smallest and largest number, ``[out, groups]``."""
    low, high = limits_of(weight, grid)
    groups = low.shape[1]
    # [groups, group, group]: what inputs of a group have to do with each other.
    size = grid.group
    blocks = torch.stack([moments.second[i : i + size, i : i + size] for i in range(0, weight.shape[1], size)])
    best, least = torch.ones_like(low), torch.full_like(low, float("inf"))
    for i in range(_CUTS + 1):
        part = 1 - (1 - _SMALLEST_CUT) * i / _CUTS
        change = round_matrix(weight, grid, (low * part, high * part)).numbers() - weight
        grouped = change.view(len(weight), groups, -1).transpose(0, 1)
        error = ((grouped @ blocks) * grouped).sum(-1).T
        is_better = error < least
        best, least = torch.where(is_better, part, best), torch.where(is_better, error, least)
    return low * best, high * best
