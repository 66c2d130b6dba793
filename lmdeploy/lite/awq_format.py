"""AWQ codes as AutoAWQ's "gemm" version stores them (backend_cpp/weights/codes/awq_gptq.h describes the packing)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lmdeploy.lite.rounding import Grid

_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight outputs is in bits 4j..4j+3 of a word


def pack(rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``qweight [in, out / 8]``, ``qzeros [groups, out / 8]`` and ``scales [groups, out]`` of 4-bit codes.

    ``rows`` holds ``codes [out, in]``, ``zeros [out, groups]`` and half ``scales [out, groups]``.
    """
    return {
        "qweight": _words(rows["codes"].T),
        "qzeros": _words(rows["zeros"].T),
        "scales": rows["scales"].T.contiguous(),
    }


def _words(codes: Tensor) -> Tensor:
    """Pack each eight neighbours of ``[rows, columns]`` into an int32."""
    nibbles = codes.to(torch.int64).cpu().reshape(len(codes), -1, 8)[:, :, list(_ORDER)]
    words = (nibbles << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def quantization_config(grid: Grid, group_size: int, left: Sequence[str]) -> dict[str, Any]:
    """Return what config.json says of the codes; ``left`` are modules that stay numbers."""
    return {
        "quant_method": "awq",
        "version": "gemm",
        "bits": grid.bits,
        "group_size": group_size,
        "zero_point": not grid.is_symmetric,
        "modules_to_not_convert": list(left) or None,
    }
