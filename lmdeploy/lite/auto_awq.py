"""`lmdeploy lite auto_awq`: a checkpoint with 4-bit AWQ weights, or 8-bit weights by the same search."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmdeploy.lite import formats
from lmdeploy.lite.layer_runs import quantize
from lmdeploy.lite.method import Method, QuantizedWeight
from lmdeploy.lite.rounding import Grid, fitting_group_size, limits_of, round_matrix
from lmdeploy.lite.scaled_groups import ScaledGroup
from lmdeploy.lite.settings import WHOLE_ROW, AwqSettings, GroupedSettings

# Activation-aware weight quantization: which inputs to scale up before rounding, and where to cut weights off.
#
# After Lin et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration" (MLSys 2024).
# Inputs that carry much have their weights multiplied by ``s > 1`` before rounding, so that these are rounded more
# finely, and the inputs are divided by ``s`` where they are made. The paper measures errors on outputs; here they are
# computed from the inputs' second moments ``H = mean x x^T``, as ``E |(W' - W) x|^2 = sum of (W' - W) H (W' - W)^T``
# over its diagonal. So the cost hardly grows with the calibration text. Of H only the blocks on its diagonal are
# kept, a group's inputs each: errors of different groups are as good as independent.
FIXED_RATIOS = (0.0, 0.5)  # of the paper's grid; the latter is near the best one for most layers
RATIOS = tuple(i / 20 for i in range(20))
_SMALLEST_CUT = 0.5  # the least part of a group's range that is kept
_CUTS = 10
_LARGEST_BLOCK = 128


@dataclass
class InputMoments:
    """Second moments of the inputs of a linear layer."""

    second: Tensor  # means of ``x x^T`` of blocks of neighbouring inputs, ``[in / block, block, block]`` float32
    magnitude: Tensor  # mean of ``|x|``, ``[in]`` float32
    count: int = 0  # inputs seen

    @classmethod
    def empty(cls, features: int, device: torch.device, block: int | None = None) -> "InputMoments":
        """Return the moments of no inputs; ``block`` divides ``features``, None: all are one block."""
        size = block or features
        return cls(torch.zeros(features // size, size, size, device=device), torch.zeros(features, device=device))

    def add(self, x: Tensor) -> None:
        """Take note of inputs ``[..., in]``."""
        rows = x.detach().reshape(-1, x.shape[-1]).float()
        if not len(rows):
            return
        total = self.count + len(rows)
        kept = self.count / total
        blocks = rows.view(len(rows), len(self.second), -1).permute(1, 2, 0)
        self.second.baddbmm_(blocks, blocks.transpose(1, 2), beta=kept, alpha=1 / total)
        self.magnitude.mul_(kept).add_(rows.abs().sum(0) / total)
        self.count = total

    def divide_by(self, scales: Tensor) -> None:
        """Become the moments of the same inputs divided by ``scales`` ``[in]``."""
        blocks = scales.view(len(self.second), -1)
        self.second.div_(blocks[:, :, None]).div_(blocks[:, None, :])
        self.magnitude.div_(scales)


def block_of(features: int, group: int) -> int:
    """Return how many neighbouring inputs are looked at together where groups of this many share a scale."""
    if group <= _LARGEST_BLOCK:
        return group
    return next((size for size in (_LARGEST_BLOCK, 64, 32, 16, 8) if features % size == 0), features)


def _errors(change: Tensor, moments: InputMoments) -> Tensor:
    """Return the mean square of what a change ``[out, in]`` of each block does to an output, ``[out, blocks]``."""
    blocks = change.view(len(change), len(moments.second), -1).transpose(0, 1)
    return ((blocks @ moments.second) * blocks).sum(-1).T


def output_error(change: Tensor, moments: InputMoments) -> Tensor:
    """Return the mean square of what a change ``[out, in]`` of a weight does to the outputs, summed over them.

    Errors of different blocks are taken as having nothing to do with each other.
    """
    return _errors(change, moments).sum()


def scales_of(moments: InputMoments, ratio: float, tie: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the factor of each input, ``[in]``, for a ratio from 0 (none) to 1 (as much as it carries).

    ``tie`` makes inputs equal that must have the same factor.
    """
    scales = tie(moments.magnitude).clamp(min=1e-4).pow(ratio)
    return scales / (scales.max() * scales.min()).sqrt()


def search_ratio(
    weights: Sequence[Tensor],
    moments: InputMoments,
    grid: Grid,
    ratios: Sequence[float],
    tie: Callable[[Tensor], Tensor] = lambda values: values,
) -> float:
    """Return the ratio whose factors (see :func:`scales_of`) give the least error of layers with the same inputs.

    ``weights``: of the layers, ``[out, in]`` each. ``moments``: of their inputs. ``grid``: what the weights will be
    rounded to. ``ratios``: to choose from. ``tie``: makes inputs equal that must have the same factor.
    """
    errors = []
    for ratio in ratios:
        scales = scales_of(moments, ratio, tie)
        changes = (round_matrix(weight * scales, grid).numbers() / scales - weight for weight in weights)
        errors.append(sum(float(output_error(change, moments)) for change in changes))
    return ratios[errors.index(min(errors))]


def search_limits(weight: Tensor, moments: InputMoments, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return where to cut off the groups of a weight ``[out, in]``: smallest and largest number, ``[out, groups]``."""
    low, high = limits_of(weight, grid)
    best, min_error = torch.ones_like(low), torch.full_like(low, float("inf"))
    for i in range(_CUTS + 1):
        part = 1 - (1 - _SMALLEST_CUT) * i / _CUTS
        change = round_matrix(weight, grid, (low * part, high * part)).numbers() - weight
        error = _errors(change, moments).view(len(weight), low.shape[1], -1).sum(-1)
        is_better = error < min_error
        best, min_error = torch.where(is_better, part, best), torch.where(is_better, error, min_error)
    return low * best, high * best


def auto_awq(
    model_dir: Path,
    work_dir: Path,
    settings: AwqSettings,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write an AWQ checkpoint of a model; see :func:`lmdeploy.lite.layer_runs.quantize`."""
    return quantize(model_dir, work_dir, _Awq(settings), progress=progress)


@dataclass(frozen=True)
class GroupedMethod(Method[InputMoments]):
    """Codes of groups of inputs, in the formats of AWQ and GPTQ."""

    settings: GroupedSettings
    group_size: int = WHOLE_ROW

    @property
    def is_symmetric(self) -> bool:
        """Whether the zero point is the middle code."""
        return True

    @property
    def desc_act(self) -> bool:
        """Whether inputs that carry much come first."""
        return False

    @property
    def stores_gptq(self) -> bool:
        """Whether codes are stored in GPTQ's own format."""
        return not self.settings.is_compressed

    def fitted_to(self, shapes: Mapping[str, tuple[int, int]]) -> "GroupedMethod":
        """Return the method with a size of groups that fits."""
        fitting = {name: shape for name, shape in shapes.items() if self.holds(shape)}
        return replace(self, group_size=fitting_group_size(self.settings.w_group_size, fitting))

    def packed(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of codes in the format."""
        if self.settings.is_compressed:
            return formats.compressed_format_pack(rows, self.grid(-1))
        return formats.gptq_format_pack(rows, self.grid(-1)) if self.stores_gptq else formats.awq_format_pack(rows)

    def quantization_config(self, left: Sequence[str]) -> dict[str, Any]:
        """Return the format's description of the codes."""
        if self.settings.is_compressed:
            return formats.packed_config(self.grid(-1), self.group_size, left)
        if self.stores_gptq:
            return formats.gptq_format_quantization_config(self.grid(-1), self.group_size, desc_act=self.desc_act)
        return formats.awq_format_quantization_config(self.grid(-1), self.group_size, left)

    def grid(self, in_features: int) -> Grid:
        """Return the grid that a matrix with so many inputs is rounded to."""
        size = in_features if self.group_size == WHOLE_ROW else self.group_size
        return Grid(self.settings.w_bits, size, self.is_symmetric)


@dataclass(frozen=True)
class _Awq(GroupedMethod):
    settings: AwqSettings
    name: str = "auto_awq"

    @property
    def is_symmetric(self) -> bool:
        return self.settings.w_sym

    @property
    def stores_gptq(self) -> bool:
        return self.settings.w_bits == 8 and super().stores_gptq

    def holds(self, shape: tuple[int, int]) -> bool:
        return shape[0] % 8 == 0 and shape[1] % 8 == 0

    def observe(self, in_features: int, device: torch.device) -> InputMoments:
        return InputMoments.empty(in_features, device, block_of(in_features, self.grid(in_features).group))

    def bytes_seen(self, in_features: int) -> int:
        return 4 * in_features * (1 + block_of(in_features, self.grid(in_features).group))

    def scales(self, group: ScaledGroup, weights: Sequence[Tensor], observed: InputMoments) -> Tensor | None:
        ratios = RATIOS if self.settings.search_scale else FIXED_RATIOS
        ratio = search_ratio(weights, observed, self.grid(weights[0].shape[1]), ratios, group.tie)
        return scales_of(observed, ratio, group.tie)

    def quantized(self, weight: Tensor, observed: InputMoments, rows_left_whole: int) -> QuantizedWeight:
        grid = self.grid(weight.shape[1])
        low, high = limits_of(weight, grid)
        rest = slice(rows_left_whole, None)
        if rows_left_whole < len(weight) and observed.count:
            low[rest], high[rest] = search_limits(weight[rest], observed, grid)
        rounded = round_matrix(weight, grid, (low, high))
        groups = torch.arange(weight.shape[1]) // grid.group
        rows = {"quantized": rounded.quantized, "zeros": rounded.zeros, "scales": rounded.scales}
        return QuantizedWeight(rows, {"g_idx": groups.to(torch.int32)} if self.stores_gptq else {})
