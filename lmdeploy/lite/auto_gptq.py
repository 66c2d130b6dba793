"""`lmdeploy lite auto_gptq`: from a checkpoint to one of 4- or 8-bit GPTQ codes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmdeploy.lite import compressed_format, gptq_format
from lmdeploy.lite.awq_search import InputMoments
from lmdeploy.lite.gptq_search import round_compensated
from lmdeploy.lite.group_sizes import WHOLE_ROW, check_group_size, fitting_group_size
from lmdeploy.lite.layer_runs import quantize
from lmdeploy.lite.method import Coded, Method
from lmdeploy.lite.rounding import Grid
from lmdeploy.lite.run_settings import CodesSettings


@dataclass(frozen=True, kw_only=True)
class GptqSettings(CodesSettings):
    """How to quantize.

    Parameters
    ----------
    w_bits, w_group_size
        Bits of a code, 4 or 8; inputs that share a scale, -1: all of a row, None: the largest that fits. The zero point
        is the middle code.
    act_order
        Round inputs that carry much first.

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    w_bits: int = 4
    w_group_size: int | None = None
    act_order: bool = False

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
        codes = 32 // self.settings.w_bits
        return shape[0] % codes == 0 and shape[1] % 8 == 0

    def observe(self, in_features: int, device: torch.device) -> InputMoments:
        return InputMoments.empty(in_features, device)

    def bytes_seen(self, in_features: int) -> int:
        return 4 * in_features**2

    def codes(self, weight: Tensor, observed: InputMoments, rows_left_whole: int) -> Coded:
        made = round_compensated(
            weight, observed.second[0], self._grid(weight.shape[1]), by_importance=self.settings.act_order
        )
        rounded = made.rounded
        rows = {"codes": rounded.codes, "zeros": rounded.zeros, "scales": rounded.scales}
        return Coded(rows, {} if self.settings.is_compressed else {"g_idx": made.groups.to(torch.int32)})

    def packed(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self.settings.is_compressed:
            return compressed_format.pack(rows, self._grid(-1))
        return gptq_format.pack(rows, self._grid(-1))

    def quantization_config(self, left: Sequence[str]) -> dict[str, Any]:
        if self.settings.is_compressed:
            return compressed_format.packed_config(self._grid(-1), self.group_size, left)
        return gptq_format.quantization_config(self._grid(-1), self.group_size, desc_act=self.settings.act_order)

    def _grid(self, in_features: int) -> Grid:
        return Grid(self.settings.w_bits, in_features if self.group_size == WHOLE_ROW else self.group_size, True)
