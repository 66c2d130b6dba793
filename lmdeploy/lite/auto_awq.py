"""`lmdeploy lite auto_awq`: from a checkpoint to one of 4-bit AWQ codes, or of 8-bit codes found in the same way."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmdeploy.lite import awq_format, compressed_format, gptq_format
from lmdeploy.lite.awq_search import (
    FIXED_RATIOS,
    RATIOS,
    InputMoments,
    block_of,
    scales_of,
    search_limits,
    search_ratio,
)
from lmdeploy.lite.group_sizes import WHOLE_ROW, check_group_size, fitting_group_size
from lmdeploy.lite.layer_runs import quantize
from lmdeploy.lite.method import Coded, Method
from lmdeploy.lite.rounding import Grid, limits_of, round_matrix
from lmdeploy.lite.run_settings import CodesSettings
from lmdeploy.lite.scaled_groups import ScaledGroup


@dataclass(frozen=True, kw_only=True)
class AwqSettings(CodesSettings):
    """How to quantize.

    Parameters
    ----------
    w_bits, w_group_size, w_sym
        Bits of a code, 4 or 8; inputs that share a scale, -1: all of a row, None: the largest that fits; whether the
        zero point is the middle code. AWQ's own format has 4 bits: 8-bit codes are stored in GPTQ's.
    search_scale
        Search the factors of each group of layers, instead of taking the ratio 0.5 where that is better than none.

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    w_bits: int = 4
    w_group_size: int | None = None
    w_sym: bool = False
    search_scale: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.w_bits not in (4, 8):
            raise ValueError(f"w_bits must be 4 or 8, got {self.w_bits}")
        check_group_size(self.w_group_size)


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
class _Awq(Method[InputMoments]):
    settings: AwqSettings
    name: str = "auto_awq"
    group_size: int = WHOLE_ROW

    def fitted_to(self, shapes: Mapping[str, tuple[int, int]]) -> "_Awq":
        fitting = {name: shape for name, shape in shapes.items() if self.holds(shape)}
        return replace(self, group_size=fitting_group_size(self.settings.w_group_size, fitting))

    def holds(self, shape: tuple[int, int]) -> bool:
        return shape[0] % 8 == 0 and shape[1] % 8 == 0

    def observe(self, in_features: int, device: torch.device) -> InputMoments:
        return InputMoments.empty(in_features, device, block_of(in_features, self._grid(in_features).group))

    def bytes_seen(self, in_features: int) -> int:
        return 4 * in_features * (1 + block_of(in_features, self._grid(in_features).group))

    def scales(self, group: ScaledGroup, weights: Sequence[Tensor], observed: InputMoments) -> Tensor | None:
        ratios = RATIOS if self.settings.search_scale else FIXED_RATIOS
        ratio = search_ratio(weights, observed, self._grid(weights[0].shape[1]), ratios, group.tie)
        return scales_of(observed, ratio, group.tie)

    def codes(self, weight: Tensor, observed: InputMoments, rows_left_whole: int) -> Coded:
        grid = self._grid(weight.shape[1])
        low, high = limits_of(weight, grid)
        rest = slice(rows_left_whole, None)
        if rows_left_whole < len(weight) and observed.count:
            low[rest], high[rest] = search_limits(weight[rest], observed, grid)
        rounded = round_matrix(weight, grid, (low, high))
        groups = torch.arange(weight.shape[1]) // grid.group
        rows = {"codes": rounded.codes, "zeros": rounded.zeros, "scales": rounded.scales}
        return Coded(rows, {"g_idx": groups.to(torch.int32)} if self._is_gptq else {})

    def packed(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self.settings.is_compressed:
            return compressed_format.pack(rows, self._grid(-1))
        return gptq_format.pack(rows, self._grid(-1)) if self._is_gptq else awq_format.pack(rows)

    def quantization_config(self, left: Sequence[str]) -> dict[str, Any]:
        if self.settings.is_compressed:
            return compressed_format.packed_config(self._grid(-1), self.group_size, left)
        if self._is_gptq:
            return gptq_format.quantization_config(self._grid(-1), self.group_size)
        return awq_format.quantization_config(self._grid(-1), self.group_size, left)

    @property
    def _is_gptq(self) -> bool:
        return self.settings.w_bits == 8 and not self.settings.is_compressed

    def _grid(self, in_features: int) -> Grid:
        size = in_features if self.group_size == WHOLE_ROW else self.group_size
        return Grid(self.settings.w_bits, size, self.settings.w_sym)
