"""Codes as the package `compressed-tensors` stores them (backend_cpp/weights/codes/row_codes.h describes the packing).

``transformers`` and other servers read them with that package alone, on a CPU too.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lmdeploy.lite.gptq_format import words
from lmdeploy.lite.rounding import Grid

NAME = "compressed-tensors"
_WHOLE_ROW = -1


def pack(rows: Mapping[str, Tensor], grid: Grid) -> dict[str, Tensor]:
    """Return ``weight_packed [out, in / n]``, ``weight_scale [out, groups]``, ``weight_shape [2]``, n codes a word.

    Unless the grid is symmetric there are ``weight_zero_point [out / n, groups]``, too. ``rows`` holds
    ``codes [out, in]``, ``zeros [out, groups]`` and half ``scales [out, groups]``.
    """
    stored = {
        "weight_packed": words(rows["codes"], grid.bits),
        "weight_scale": rows["scales"].contiguous(),
        "weight_shape": torch.tensor(rows["codes"].shape),
    }
    if not grid.is_symmetric:
        stored["weight_zero_point"] = words(rows["zeros"].T, grid.bits).T.contiguous()
    return stored


def packed_config(grid: Grid, group_size: int, left: Sequence[str]) -> dict[str, Any]:
    """Return what config.json says of codes of :func:`pack`; ``left`` are modules that stay numbers."""
    by_row = group_size == _WHOLE_ROW
    weights = {
        "num_bits": grid.bits,
        "type": "int",
        "symmetric": grid.is_symmetric,
        "strategy": "channel" if by_row else "group",
        "group_size": None if by_row else group_size,
        "dynamic": False,
    }
    return _config("pack-quantized", weights, None, left)


def scaled_config(codes: torch.dtype, left: Sequence[str]) -> dict[str, Any]:
    """Return what config.json says of int8 or float8 codes with a scale for each output."""
    kind = "float" if codes.is_floating_point else "int"
    side = {"num_bits": 8, "type": kind, "symmetric": True}
    weights = {**side, "strategy": "channel", "dynamic": False}
    return _config(f"{kind}-quantized", weights, {**side, "strategy": "token", "dynamic": True}, left)


def _config(stored: str, weights: dict[str, Any], inputs: dict[str, Any] | None, left: Sequence[str]) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": NAME,
        "format": stored,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {**group, "format": stored}},
        "ignore": ["lm_head", *(rf"re:(.*\.)?{re.escape(name)}(\..*)?$" for name in left if name != "lm_head")],
    }
