"""Partial reads of a tensor's rows in a safetensors file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def stored_rows(file: Path, name: str, rows: Sequence[int] | None = None) -> NDArray[np.float32]:
    """Return rows of a matrix, or of a vector as ``[1, length]``, in float32.

    ``file``, ``name``: the file, and the tensor in it. ``rows``: which of them; None: all. Raises `ValueError`: the
    file has no such tensor or row, or it holds codes in place of numbers.
    """
    if file.suffix != ".safetensors":
        raise ValueError(f"{file.name} is no safetensors file")
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        if name not in opened.keys():  # noqa: SIM118 (the file is no mapping)
            raise ValueError(f"{file.name} has no tensor {name}")
        stored = opened.get_slice(name)
        if stored.get_dtype() not in ("F32", "F16", "BF16"):
            raise ValueError(f"tensor {name} is stored as {stored.get_dtype()}")
        tensor = opened.get_tensor(name)  # mapped: what is not used is not read
    matrix = tensor if tensor.dim() == 2 else tensor[None]
    chosen = range(len(matrix)) if rows is None else rows
    if any(not 0 <= row < len(matrix) for row in chosen):
        raise ValueError(f"tensor {name} has {len(matrix)} rows, not {max(chosen) + 1}")
    numbers: NDArray[np.float32] = matrix[list(chosen)].float().numpy()
    return numbers
