"""Partial reads of a tensor's rows in a safetensors file, without torch or ``safetensors``."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def stored_rows(file: Path, name: str, rows: Sequence[int] | None = None) -> NDArray[np.float32]:
    """Return rows of a matrix, or of a vector as ``[1, length]``, in float32.

    ``file``, ``name``: the file, and the tensor in it. ``rows``: which of them; None: all. Raises `ValueError`: the
    file has no such tensor or row, or it holds codes in place of numbers.
    """
    if file.suffix != ".safetensors":
        raise ValueError(f"{file.name} is no safetensors file")
    with file.open("rb") as opened:
        (size,) = struct.unpack("<Q", opened.read(8))
        entry = json.loads(opened.read(size)).get(name)
        if entry is None:
            raise ValueError(f"{file.name} has no tensor {name}")
        if entry["dtype"] not in _TYPES:
            raise ValueError(f"tensor {name} is stored as {entry['dtype']}")
        kind, shape = _TYPES[entry["dtype"]], entry["shape"]
        count, width = shape if len(shape) == 2 else (1, shape[0])
        chosen = range(count) if rows is None else rows
        if any(not 0 <= row < count for row in chosen):
            raise ValueError(f"tensor {name} has {count} rows, not {max(chosen) + 1}")
        read = []
        for row in chosen:
            opened.seek(8 + size + entry["data_offsets"][0] + row * width * kind.itemsize)
            read.append(np.frombuffer(opened.read(width * kind.itemsize), dtype=kind))
    stored = np.stack(read)
    if entry["dtype"] == "BF16":  # the upper half of a float32
        stored = (stored.astype("<u4") << 16).view("<f4")
    numbers: NDArray[np.float32] = stored.astype(np.float32)
    return numbers
