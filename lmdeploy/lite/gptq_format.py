"""Codes as GPTQ's tools store them (backend_cpp/weights/codes/awq_gptq.h describes the packing)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lmdeploy.lite.rounding import Grid


def pack(rows: Mapping[str, Tensor], grid: Grid) -> dict[str, Tensor]:
    """Return ``qweight [in / n, out]``, ``qzeros [groups, out / n]`` and ``scales [groups, out]``, n codes a word.

    ``rows`` holds ``codes [out, in]``, ``zeros [out, groups]`` and half ``scales [out, groups]``. Zero points are
    stored as they are (the second format) unless the grid is symmetric, where they are stored less one, as the first
    has them.
    """
    zeros = rows["zeros"] - 1 if grid.is_symmetric else rows["zeros"]
    return {
        "qweight": words(rows["codes"], grid.bits).T.contiguous(),
        "qzeros": words(zeros.T, grid.bits),
        "scales": rows["scales"].T.contiguous(),
    }


def words(codes: Tensor, bits: int) -> Tensor:
    """Pack neighbours of ``[rows, columns]``, codes of some bits, into int32, the first in the lowest bits."""
    values = codes.to(torch.int64).reshape(len(codes), -1, 32 // bits)
    words = (values << torch.arange(0, 32, bits)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def quantization_config(grid: Grid, group_size: int, *, desc_act: bool = False) -> dict[str, Any]:
    """Return what config.json says of the codes."""
    return {
        "quant_method": "gptq",
        "bits": grid.bits,
        "group_size": group_size,
        "sym": grid.is_symmetric,
        "desc_act": desc_act,
        "checkpoint_format": "gptq" if grid.is_symmetric else "gptq_v2",
        "lm_head": False,
    }
