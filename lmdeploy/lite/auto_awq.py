"""`lmdeploy lite auto_awq`: from a checkpoint to one of 4-bit AWQ codes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lmdeploy.lite.awq_format import pack, quantization_config
from lmdeploy.lite.awq_search import FIXED_RATIO, RATIOS, InputMoments, search_limits, search_scales
from lmdeploy.lite.decoder_layers import PREFIX, DecoderLayers
from lmdeploy.lite.layer_runs import Method, RunSettings, quantize
from lmdeploy.lite.rounding import Grid, round_matrix
from lmdeploy.lite.scaled_groups import ScaledGroup

# Queries and keys meet in a product, where cutting both off adds up; the paper leaves them whole.
_NEVER_CUT = ("q_proj", "k_proj")


@dataclass(frozen=True, kw_only=True)
class AwqSettings(RunSettings):
    """How to quantize.

    Parameters
    ----------
    w_bits, w_group_size, w_sym
        Bits of a code; inputs that share a scale, -1: all of a row; whether the zero point is the middle code.
    search_scale
        Search the factors of each group of layers, instead of taking the ratio 0.5 for all.

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    w_bits: int = 4
    w_group_size: int = 128
    w_sym: bool = False
    search_scale: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.w_bits != 4:
            raise ValueError(f"w_bits must be 4, the only size of AWQ's format, got {self.w_bits}")
        if self.w_group_size != -1 and (self.w_group_size < 8 or self.w_group_size % 8):
            raise ValueError(f"w_group_size must be -1 or a multiple of 8, got {self.w_group_size}")

    def grid(self, in_features: int) -> Grid:
        """Return what a weight of so many inputs is rounded to."""
        return Grid(self.w_bits, in_features if self.w_group_size == -1 else self.w_group_size, self.w_sym)


def auto_awq(
    model_dir: Path,
    work_dir: Path,
    settings: AwqSettings,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write a 4-bit AWQ checkpoint of a model; see :func:`lmdeploy.lite.layer_runs.quantize`."""
    return quantize(model_dir, work_dir, _Awq(settings), progress=progress)


@dataclass(frozen=True)
class _Awq(Method[InputMoments]):
    settings: AwqSettings
    name: str = "auto_awq"

    def check_sizes(self, layers: DecoderLayers) -> None:
        problems = []
        for name, info in layers.files.index.tensors.items():
            if not name.startswith(f"{PREFIX}0.") or not name.endswith("_proj.weight") or len(info.shape) != 2:
                continue
            out_features, in_features = info.shape
            if in_features % self.settings.grid(in_features).group:
                sizes = [size for size in (128, 64, 32, 16, 8) if in_features % size == 0]
                problems.append(
                    f"{name.removeprefix(PREFIX + '0.')} has {in_features} inputs, no multiple of w_group_size "
                    f"{self.settings.w_group_size}; these would do: {', '.join(map(str, [-1, *sizes]))}"
                )
            if out_features % 8:
                problems.append(f"{name} has {out_features} outputs, which must be a multiple of 8")
        if problems:
            raise ValueError("; ".join(problems))

    def observe(self, consumer: nn.Linear) -> InputMoments:
        return InputMoments.empty(consumer.in_features, consumer.weight.device)

    def scales(self, group: ScaledGroup, observed: InputMoments) -> Tensor:
        weights = [consumer.weight for _, consumer in group.consumers]
        ratios = RATIOS if self.settings.search_scale else (FIXED_RATIO,)
        return search_scales(weights, observed, self.settings.grid(weights[0].shape[1]), ratios, group.tie)

    def codes(self, name: str, weight: Tensor, observed: InputMoments) -> dict[str, Tensor]:
        grid = self.settings.grid(weight.shape[1])
        limits = None if name.endswith(_NEVER_CUT) else search_limits(weight, observed, grid)
        return pack(round_matrix(weight, grid, limits))

    def quantization_config(self) -> dict[str, Any]:
        return quantization_config(self.settings.grid(-1))
