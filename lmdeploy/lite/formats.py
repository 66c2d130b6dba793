"""Formats of quantized checkpoints: AutoAWQ, GPTQ and compressed-tensors."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lmdeploy.lite.rounding import Grid

# AWQ codes as AutoAWQ's "gemm" version stores them (backend_cpp/weights/quantized/awq_gptq.h describes the packing).
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight outputs is in bits 4j..4j+3 of a word


def awq_format_pack(rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``qweight [in, out / 8]``, ``qzeros [groups, out / 8]`` and ``scales [groups, out]`` of 4-bit codes.

    ``rows`` holds ``quantized [out, in]``, ``zeros [out, groups]`` and half ``scales [out, groups]``.
    """
    return {
        "qweight": words(_interleaved(rows["quantized"].T), 4),
        "qzeros": words(_interleaved(rows["zeros"].T), 4),
        "scales": rows["scales"].T.contiguous(),
    }


def _interleaved(quantized: Tensor) -> Tensor:
    """Return ``[rows, columns]`` with each eight neighbours in the order of a word."""
    return quantized.unflatten(1, (-1, 8))[:, :, list(_ORDER)].flatten(1)


def awq_format_quantization_config(grid: Grid, group_size: int, left: Sequence[str]) -> dict[str, Any]:
    """Return the quantization_config of the codes; ``left`` are modules that stay numbers."""
    return {
        "quant_method": "awq",
        "version": "gemm",
        "bits": grid.bits,
        "group_size": group_size,
        "zero_point": not grid.is_symmetric,
        "modules_to_not_convert": list(left) or None,
    }


# Codes as GPTQ's tools store them (backend_cpp/weights/quantized/awq_gptq.h describes the packing).
def gptq_format_pack(rows: Mapping[str, Tensor], grid: Grid) -> dict[str, Tensor]:
    """Return ``qweight [in / n, out]``, ``qzeros [groups, out / n]`` and ``scales [groups, out]``, n codes a word.

    ``rows`` holds ``quantized [out, in]``, ``zeros [out, groups]`` and half ``scales [out, groups]``. Zero points are
    stored as they are (the second format) unless the grid is symmetric, where they are stored less one, as the first
    has them.
    """
    zeros = rows["zeros"] - 1 if grid.is_symmetric else rows["zeros"]
    return {
        "qweight": words(rows["quantized"], grid.bits).T.contiguous(),
        "qzeros": words(zeros.T, grid.bits),
        "scales": rows["scales"].T.contiguous(),
    }


def words(quantized: Tensor, bits: int) -> Tensor:
    """Pack neighbours of ``[rows, columns]``, codes of some bits, into int32, the first in the lowest bits."""
    values = quantized.to(torch.int64).reshape(len(quantized), -1, 32 // bits)
    words = (values << torch.arange(0, 32, bits)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def gptq_format_quantization_config(grid: Grid, group_size: int, *, desc_act: bool = False) -> dict[str, Any]:
    """Return the quantization_config of the codes."""
    return {
        "quant_method": "gptq",
        "bits": grid.bits,
        "group_size": group_size,
        "sym": grid.is_symmetric,
        "desc_act": desc_act,
        "checkpoint_format": "gptq" if grid.is_symmetric else "gptq_v2",
        "lm_head": False,
    }


# Codes as the package `compressed-tensors` stores them (backend_cpp/weights/quantized/row_quantized.h has the packing).
#
# ``transformers`` and other servers read them with that package alone, on a CPU too.
NAME = "compressed-tensors"
_WHOLE_ROW = -1


def compressed_format_pack(rows: Mapping[str, Tensor], grid: Grid) -> dict[str, Tensor]:
    """Return ``weight_packed [out, in / n]``, ``weight_scale [out, groups]``, ``weight_shape [2]``, n codes a word.

    Unless the grid is symmetric there are ``weight_zero_point [out / n, groups]``, too. ``rows`` holds
    ``quantized [out, in]``, ``zeros [out, groups]`` and half ``scales [out, groups]``.
    """
    stored = {
        "weight_packed": words(rows["quantized"], grid.bits),
        "weight_scale": rows["scales"].contiguous(),
        "weight_shape": torch.tensor(rows["quantized"].shape),
    }
    if not grid.is_symmetric:
        stored["weight_zero_point"] = words(rows["zeros"].T, grid.bits).T.contiguous()
    return stored


def packed_config(grid: Grid, group_size: int, left: Sequence[str]) -> dict[str, Any]:
    """Return the quantization_config of codes of :func:`pack`; ``left`` are modules that stay numbers."""
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


def scaled_config(dtype: torch.dtype, left: Sequence[str]) -> dict[str, Any]:
    """Return the quantization_config of int8 or float8 codes with a scale for each output."""
    kind = "float" if dtype.is_floating_point else "int"
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
