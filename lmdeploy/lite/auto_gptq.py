"""`lmdeploy lite auto_gptq`: a checkpoint with 4- or 8-bit GPTQ weights."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lmdeploy.lite.auto_awq import GroupedMethod, InputMoments
from lmdeploy.lite.layer_runs import quantize
from lmdeploy.lite.method import QuantizedWeight
from lmdeploy.lite.rounding import (
    Grid,
    Rounded,
    limits_of,
    round_matrix,
)
from lmdeploy.lite.settings import GptqSettings

# GPTQ: rounding column after column, each error made up for by the columns that are not rounded yet.
#
# After Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers" (ICLR 2023,
# arXiv 2210.17323), algorithm 1: with the Cholesky factor ``U`` of the inverse of the inputs' second moments,
# ``U^T U = H^-1``, the error of column i divided by ``U_ii`` is taken off the later columns times ``U_i``.
_DAMPING = 0.01  # of the mean of the diagonal, added to it
_COLUMNS = 128  # whose errors reach the columns after them at a time
_CUTS = tuple(1 - 0.05 * i for i in range(9))  # parts of a group's range that are tried


@dataclass(frozen=True)
class Compensated:
    """A rounded matrix and, for each input, the group whose scale it has, ``[in]``."""

    rounded: Rounded
    groups: Tensor


def round_compensated(weight: Tensor, second: Tensor, grid: Grid, *, by_importance: bool) -> Compensated:
    """Return ``weight`` ``[out, in]`` rounded with the errors of outputs kept small.

    ``weight``: the matrix, float32. ``second``: mean of ``x x^T`` of its inputs, ``[in, in]``. ``grid``: what to round
    to. ``by_importance``: round inputs that carry much first (``desc_act``); groups are then of inputs that carry
    alike.
    """
    features = weight.shape[1]
    order = torch.arange(features, device=weight.device)
    if by_importance:
        order = second.diagonal().argsort(descending=True, stable=True)
    left = weight[:, order].clone()
    factor = _factor_of(second[order][:, order])
    quantized, zeros, scales = torch.empty_like(left), [], []
    for begin in range(0, features, _COLUMNS):
        end = min(begin + _COLUMNS, features)
        errors = torch.empty(len(left), end - begin, device=left.device)
        for column in range(begin, end):
            if column % grid.group == 0:
                # Of the columns of this group after the block errors so far are still owed.
                ahead = left[:, column : column + grid.group]
                if column + grid.group > end:
                    ahead = ahead.clone()
                    owed = factor[begin:column, end : column + grid.group]
                    ahead[:, end - column :] -= errors[:, : column - begin] @ owed
                zero, scale = _grid_of(ahead, grid)
                zeros.append(zero)
                scales.append(scale)
            top = 2**grid.bits - 1
            nearest = ((left[:, column] / scales[-1].float()).round() + zeros[-1]).clamp(0, top)
            quantized[:, column] = nearest
            error = (left[:, column] - (nearest - zeros[-1]) * scales[-1].float()) / factor[column, column]
            left[:, column:end] -= error[:, None] * factor[column, column:end]
            errors[:, column - begin] = error
        left[:, end:] -= errors @ factor[begin:end, end:]
    back = order.argsort()
    groups = (torch.arange(features, device=weight.device) // grid.group)[back]
    return Compensated(Rounded(quantized[:, back], torch.stack(zeros, 1), torch.stack(scales, 1)), groups)


def _factor_of(second: Tensor) -> Tensor:
    """Return the upper Cholesky factor of the inverse; inputs that are always zero hang together with none."""
    moments = second.double()
    diagonal = moments.diagonal()
    is_dead = diagonal == 0
    mean = float(diagonal.mean()) or 1.0
    moments = moments + torch.diag(torch.where(is_dead, mean, _DAMPING * mean))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments))
    return torch.linalg.cholesky(inverse, upper=True).float()


def _grid_of(columns: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return zero points and half scales ``[out]`` of a group ``[out, group]``, with the least square error."""
    grid_of_rows = Grid(grid.bits, columns.shape[1], grid.is_symmetric)
    low, high = limits_of(columns, grid_of_rows)
    best, min_error = None, torch.full((len(columns),), float("inf"), device=columns.device)
    for part in _CUTS:
        tried = round_matrix(columns, grid_of_rows, (low * part, high * part))
        error = (tried.numbers() - columns).square().sum(-1)
        found = torch.stack((tried.zeros[:, 0], tried.scales[:, 0].float()))
        best = found if best is None else torch.where(error < min_error, found, best)
        min_error = torch.minimum(error, min_error)
    assert best is not None
    return best[0], best[1].half()


def auto_gptq(
    model_dir: Path,
    work_dir: Path,
    settings: GptqSettings,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write a GPTQ checkpoint of a model; see :func:`lmdeploy.lite.layer_runs.quantize`."""
    return quantize(model_dir, work_dir, _Gptq(settings), progress=progress)


@dataclass(frozen=True)
class _Gptq(GroupedMethod):
    settings: GptqSettings
    name: str = "auto_gptq"

    @property
    def desc_act(self) -> bool:
        return self.settings.act_order

    def holds(self, shape: tuple[int, int]) -> bool:
        per_word = 32 // self.settings.w_bits
        return shape[0] % per_word == 0 and shape[1] % 8 == 0

    def observe(self, in_features: int, device: torch.device) -> InputMoments:
        return InputMoments.empty(in_features, device)

    def bytes_seen(self, in_features: int) -> int:
        return 4 * in_features**2

    def quantized(self, weight: Tensor, observed: InputMoments, rows_left_whole: int) -> QuantizedWeight:
        made = round_compensated(weight, observed.second[0], self.grid(weight.shape[1]), by_importance=self.desc_act)
        rounded = made.rounded
        rows = {"quantized": rounded.quantized, "zeros": rounded.zeros, "scales": rounded.scales}
        return QuantizedWeight(rows, {"g_idx": made.groups.to(torch.int32)} if self.stores_gptq else {})
