"""Small layers of a checkpoint in float32, from safetensors or PyTorch files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lmdeploy.stored_rows import stored_rows
from lmdeploy.turbomind.gguf.numbers import stored_numbers
from lmdeploy.turbomind.safetensors_index import read_checkpoint

if TYPE_CHECKING:
    from numpy.typing import NDArray


def tensor_of(model_dir: Path, names: Sequence[str], rows: Sequence[int] | None = None) -> NDArray[np.float32]:
    """Return the first tensor of `names` that a checkpoint has, or these rows of it; a vector is one row.

    Raises `ValueError` if it has none of them.
    """
    index = read_checkpoint(model_dir)
    name = next((name for name in names if name in index.tensors), None)
    if name is None:
        raise ValueError(f"tensor {names[0]} is missing")
    info = index.tensors[name]
    if info.offset is not None:
        return stored_numbers(index.files[info.file], info, name)[slice(None) if rows is None else list(rows)]
    return stored_rows(index.files[info.file], name, rows)


def linear_of(model_dir: Path, name: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the weight ``[outputs, inputs]`` and the bias ``[outputs]`` of a linear layer, 0 where it has none."""
    weight = tensor_of(model_dir, (f"{name}.weight",))
    return weight, vector_of(model_dir, (f"{name}.bias",), len(weight))


def vector_of(model_dir: Path, names: Sequence[str], size: int) -> NDArray[np.float32]:
    """Return the first vector of `names` that a checkpoint has; zeros of that size where it has none."""
    has = any(name in read_checkpoint(model_dir).tensors for name in names)
    return tensor_of(model_dir, names)[0] if has else np.zeros(size, np.float32)
