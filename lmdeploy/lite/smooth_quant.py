"""`lmdeploy lite smooth_quant`: from a checkpoint to one of int8 or fp8 weights, made for 8-bit activations too.

After Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models" (ICML
2023, arXiv 2211.10438): inputs that now and then are large would leave few steps for the others of their token, so
they are divided where they are made, by ``s = max |x| ^ 0.5 / max |w| ^ 0.5``, and their weights multiplied. Weights
are then rounded with a scale for each output. (``lmdeploy.turbomind.scaled`` tells how such a checkpoint is stored.)
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lmdeploy.lite.layer_runs import Method, RunSettings, quantize
from lmdeploy.lite.scaled_groups import ScaledGroup

# Type of the codes, and the largest of them.
QUANT_DTYPES = {"int8": (torch.int8, 127.0), "fp8": (torch.float8_e4m3fn, 448.0)}
_STRENGTH = 0.5  # the paper's alpha: how much of the inputs' spread the weights take over
_SMALLEST = 1e-5  # of a range, and of a weight's: what has none is not scaled without bound


@dataclass(frozen=True, kw_only=True)
class SmoothQuantSettings(RunSettings):
    """How to quantize.

    Parameters
    ----------
    quant_dtype
        Of weights: ``int8`` or ``fp8`` (E4M3).

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    quant_dtype: str = "int8"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quant_dtype not in QUANT_DTYPES:
            raise ValueError(f"quant_dtype must be one of {', '.join(QUANT_DTYPES)}, got {self.quant_dtype!r}")


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
    """The largest ``|x|`` of each input seen, ``[in]`` float32."""

    largest: Tensor

    def add(self, x: Tensor) -> None:
        """Take note of inputs ``[..., in]``."""
        rows = x.detach().reshape(-1, x.shape[-1]).float()
        self.largest = torch.maximum(self.largest, rows.abs().amax(0))

    def divide_by(self, scales: Tensor) -> None:
        """Become the range of the same inputs divided by ``scales`` ``[in]``."""
        self.largest = self.largest / scales


def round_outputs(weight: Tensor, quant_dtype: str) -> dict[str, Tensor]:
    """Return codes ``weight`` ``[out, in]`` and float32 ``scale`` ``[out, 1]`` of a matrix ``[out, in]`` float32."""
    dtype, largest = QUANT_DTYPES[quant_dtype]
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / largest
    steps = weight / scale
    codes = steps.round() if dtype == torch.int8 else steps
    return {"weight": codes.clamp(-largest, largest).to(dtype).contiguous(), "scale": scale}


@dataclass(frozen=True)
class _SmoothQuant(Method[InputRange]):
    settings: SmoothQuantSettings
    name: str = "smooth_quant"

    def observe(self, consumer: nn.Linear) -> InputRange:
        return InputRange(torch.zeros(consumer.in_features, device=consumer.weight.device))

    def scales(self, group: ScaledGroup, observed: InputRange) -> Tensor:
        weights = torch.stack([consumer.weight.abs().amax(0) for _, consumer in group.consumers]).amax(0)
        x, w = (group.tie(values).clamp(min=_SMALLEST) for values in (observed.largest, weights))
        return x.pow(_STRENGTH) / w.pow(1 - _STRENGTH)

    def codes(self, name: str, weight: Tensor, observed: InputRange) -> dict[str, Tensor]:
        return round_outputs(weight, self.settings.quant_dtype)

    def quantization_config(self) -> dict[str, Any]:
        dtype, _ = QUANT_DTYPES[self.settings.quant_dtype]
        return {"quant_method": "smooth_quant", "quant_dtype": str(dtype).removeprefix("torch.")}
