"""`lmdeploy lite smooth_quant`: from a checkpoint to one of int8 or fp8 weights, made for 8-bit activations too.

After Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models" (ICML
2023, arXiv 2211.10438): inputs that now and then are large would leave few steps for the others of their token, so
they are divided where they are made, by ``s = max |x| ^ 0.5 / max |w| ^ 0.5``, and their weights multiplied. Weights
are then rounded with a scale for each output. (``lmdeploy.turbomind.scaled`` says how such a checkpoint is stored.)
With a search the exponent is the one of several that costs least on some of the inputs seen, these rounded as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmdeploy.lite import formats
from lmdeploy.lite.layer_runs import quantize
from lmdeploy.lite.method import Method, QuantizedWeight
from lmdeploy.lite.scaled_groups import ScaledGroup
from lmdeploy.lite.settings import SmoothQuantSettings

# Type of the codes, and the largest of them.
QUANT_DTYPES = {"int8": (torch.int8, 127.0), "fp8": (torch.float8_e4m3fn, 448.0)}
_STRENGTH = 0.5  # the paper's alpha: how much of the inputs' spread the weights take over
_STRENGTHS = tuple(i / 10 for i in range(11))
_KEPT_ROWS = 256  # of inputs, to measure on
_SMALLEST = 1e-5  # of a range, and of a weight's: what has none is not scaled without bound


def smooth_quant(
    model_dir: Path,
    work_dir: Path,
    settings: SmoothQuantSettings,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write a W8A8 checkpoint of a model; see :func:`lmdeploy.lite.layer_runs.quantize`."""
    return quantize(model_dir, work_dir, _SmoothQuant(settings), progress=progress)


@dataclass
class InputRange:
    """Range of the inputs of a linear layer."""

    largest: Tensor  # the largest ``|x|`` of each input, ``[in]`` float32
    rows: Tensor  # some of the inputs, ``[rows, in]``, from all over the text
    count: int = 0  # inputs seen

    def add(self, x: Tensor) -> None:
        """Take note of inputs ``[..., in]``."""
        rows = x.detach().reshape(-1, x.shape[-1]).float()
        if not len(rows):
            return
        self.largest = torch.maximum(self.largest, rows.abs().amax(0))
        self.count += len(rows)
        both = torch.cat((self.rows, rows[:: max(1, len(rows) // 16)]))
        step = -(-len(both) // _KEPT_ROWS)
        self.rows = both[::step].clone()

    def divide_by(self, scales: Tensor) -> None:
        """Become the range of the same inputs divided by ``scales`` ``[in]``."""
        self.largest = self.largest / scales
        self.rows = self.rows / scales


def round_outputs(weight: Tensor, quant_dtype: str) -> dict[str, Tensor]:
    """Return codes ``weight`` ``[out, in]`` and float32 ``scale`` ``[out, 1]`` of a matrix ``[out, in]`` float32."""
    dtype, largest = QUANT_DTYPES[quant_dtype]
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / largest
    steps = weight / scale
    quantized = steps.round() if dtype == torch.int8 else steps
    return {"weight": quantized.clamp(-largest, largest).to(dtype).contiguous(), "scale": scale}


def _strength_of(weights: Sequence[Tensor], observed: InputRange, scales: Mapping[float, Tensor], dtype: str) -> float:
    """Return the strength with which outputs of the inputs kept change least when both sides are rounded."""
    costs = {}
    for strength, factors in scales.items():
        x = _rounded(observed.rows / factors, dtype)
        costs[strength] = sum(
            float((x @ _rounded(weight * factors, dtype).T - observed.rows @ weight.T).square().mean())
            for weight in weights
        )
    return min(costs, key=lambda strength: (costs[strength], abs(strength - _STRENGTH)))


def _rounded(rows: Tensor, quant_dtype: str) -> Tensor:
    """Return the numbers that rows rounded with a scale each stand for."""
    stored = round_outputs(rows, quant_dtype)
    return stored["weight"].float() * stored["scale"]


@dataclass(frozen=True)
class _SmoothQuant(Method[InputRange]):
    settings: SmoothQuantSettings
    name: str = "smooth_quant"

    def observe(self, in_features: int, device: torch.device) -> InputRange:
        return InputRange(torch.zeros(in_features, device=device), torch.zeros(0, in_features, device=device))

    def bytes_seen(self, in_features: int) -> int:
        return 4 * in_features * (1 + _KEPT_ROWS)

    def scales(self, group: ScaledGroup, weights: Sequence[Tensor], observed: InputRange) -> Tensor | None:
        largest = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0)
        x, w = (group.tie(values).clamp(min=_SMALLEST) for values in (observed.largest, largest))

        def factors(strength: float) -> Tensor:
            return x.pow(strength) / w.pow(1 - strength)

        if not observed.count:
            return None
        if not self.settings.search_scale:
            return factors(_STRENGTH)
        tried = {strength: factors(strength) for strength in _STRENGTHS}
        return tried[_strength_of(weights, observed, tried, self.settings.quant_dtype)]

    def quantized(self, weight: Tensor, observed: InputRange, rows_left_whole: int) -> QuantizedWeight:
        return QuantizedWeight(round_outputs(weight, self.settings.quant_dtype))

    def packed(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        if not self.settings.is_compressed:
            return dict(rows)
        return {"weight": rows["weight"], "weight_scale": rows["scale"]}

    def quantization_config(self, left: Sequence[str]) -> dict[str, Any]:
        dtype, _ = QUANT_DTYPES[self.settings.quant_dtype]
        if self.settings.is_compressed:
            return formats.scaled_config(dtype, left)
        config: dict[str, Any] = {"quant_method": "smooth_quant", "quant_dtype": str(dtype).removeprefix("torch.")}
        return config | ({"modules_to_not_convert": list(left)} if left else {})
