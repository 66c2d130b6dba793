"""Small tensors of a GGUF file as numbers, and numbers as a file of small tensors."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lmdeploy.turbomind.gguf.header import MAGIC, GgufTensor
from lmdeploy.turbomind.safetensors_index import TensorInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = np.dtype([("scale", "<f2"), ("codes", "i1", 32)])  # of Q8_0: 32 numbers along a row
_TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


def stored_numbers(file: Path, info: TensorInfo | GgufTensor, name: str) -> NDArray[np.float32]:
    """Return a tensor, a vector as ``[1, length]``, in float32.

    Raises `ValueError` if it is stored in codes other than Q8_0's.
    """
    if info.dtype not in {*_TYPES, "Q8_0"}:
        raise ValueError(f"tensor {name} is stored as {info.dtype}; those read are {', '.join(_TYPES)} and Q8_0")
    shape = (1, *info.shape) if len(info.shape) == 1 else tuple(info.shape)
    count = math.prod(shape)
    if info.dtype == "Q8_0":
        blocks = np.fromfile(file, _BLOCK, count // 32, offset=info.offset or 0)
        numbers: NDArray[np.float32] = blocks["scale"].astype(np.float32)[:, None] * blocks["codes"]
        return numbers.reshape(shape)
    stored = np.fromfile(file, _TYPES[info.dtype], count, offset=info.offset or 0)
    if info.dtype == "BF16":  # the upper half of a float32
        stored = (stored.astype("<u4") << 16).view("<f4")
    return stored.astype(np.float32).reshape(shape)


def write_numbers(file: Path, tensors: Mapping[str, Sequence[float]]) -> None:
    """Write a GGUF file of float32 vectors: what a model has in its metadata and the engine reads as tensors."""
    header = MAGIC + struct.pack("<IQQ", 3, len(tensors), 0)
    stored = b""
    for name, numbers in tensors.items():
        text = name.encode()
        header += struct.pack("<Q", len(text)) + text + struct.pack("<IQIQ", 1, len(numbers), 0, len(stored))
        stored += _aligned(struct.pack(f"<{len(numbers)}f", *numbers))
    file.write_bytes(_aligned(header) + stored)


def _aligned(content: bytes) -> bytes:
    return content + bytes(-len(content) % 32)
