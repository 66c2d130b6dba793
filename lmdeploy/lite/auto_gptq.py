"""`lmdeploy lite auto_gptq`: a checkpoint with 4- or 8-bit GPTQ weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmdeploy.lite import formats
from lmdeploy.lite.auto_awq import InputMoments
from lmdeploy.lite.layer_runs import quantize
from lmdeploy.lite.method import Method, QuantizedWeight
from lmdeploy.lite.rounding import (
    WHOLE_ROW,
    Grid,
    Rounded,
    check_group_size,
    fitting_group_size,
    limits_of,
    round_matrix,
)
from lmdeploy.lite.run_settings import QuantizationSettings

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

    Parameters
    ----------
    weight
        The matrix, float32.
    second
        Mean of ``x x^T`` of its inputs, ``[in, in]``.
    grid
        What to round to.
    by_importance
        Round inputs that carry much first (``desc_act``); groups are then of inputs that carry alike.
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


@dataclass(frozen=True, kw_only=True)
class GptqSettings(QuantizationSettings):
    """How to quantize.

    Raises `ValueError` if a value is out of range.
    """

    # Bits of a code, 4 or 8; inputs that share a scale, -1: all of a row, None: the largest that fits. The zero point
    # is the middle code.
    w_bits: int = 4
    w_group_size: int | None = None
    act_order: bool = False  # round inputs that carry much first

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.w_bits not in (4, 8):
            raise ValueError(f"w_bits must be 4 or 8, got {self.w_bits}")
        if self.act_order and self.is_compressed:
            raise ValueError("compressed-tensors has no form for inputs in an order: leave --act-order or --format out")
        check_group_size(self.w_group_size)


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
class _Gptq(Method[InputMoments]):
    settings: GptqSettings
    name: str = "auto_gptq"
    group_size: int = WHOLE_ROW

    def fitted_to(self, shapes: Mapping[str, tuple[int, int]]) -> "_Gptq":
        fitting = {name: shape for name, shape in shapes.items() if self.holds(shape)}
        return replace(self, group_size=fitting_group_size(self.settings.w_group_size, fitting))

    def holds(self, shape: tuple[int, int]) -> bool:
        per_word = 32 // self.settings.w_bits
        return shape[0] % per_word == 0 and shape[1] % 8 == 0

    def observe(self, in_features: int, device: torch.device) -> InputMoments:
        return InputMoments.empty(in_features, device)

    def bytes_seen(self, in_features: int) -> int:
        return 4 * in_features**2

    def quantized(self, weight: Tensor, observed: InputMoments, rows_left_whole: int) -> QuantizedWeight:
        made = round_compensated(
            weight, observed.second[0], self._grid(weight.shape[1]), by_importance=self.settings.act_order
        )
        rounded = made.rounded
        rows = {"quantized": rounded.quantized, "zeros": rounded.zeros, "scales": rounded.scales}
        return QuantizedWeight(rows, {} if self.settings.is_compressed else {"g_idx": made.groups.to(torch.int32)})

    def packed(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self.settings.is_compressed:
            return formats.compressed_format_pack(rows, self._grid(-1))
        return formats.gptq_format_pack(rows, self._grid(-1))

    def quantization_config(self, left: Sequence[str]) -> dict[str, Any]:
        if self.settings.is_compressed:
            return formats.packed_config(self._grid(-1), self.group_size, left)
        return formats.gptq_format_quantization_config(
            self._grid(-1), self.group_size, desc_act=self.settings.act_order
        )

    def _grid(self, in_features: int) -> Grid:
        return Grid(self.settings.w_bits, in_features if self.group_size == WHOLE_ROW else self.group_size, True)
