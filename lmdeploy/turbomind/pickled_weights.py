"""Weights in PyTorch's own files, which are pickles: read as tensors and nothing else, and written as safetensors.

A pickle may hold calls of any function. ``torch.load(weights_only=True)`` refuses such a file before it calls anything.
"""

import json
import pickle
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lmdeploy.errors import CheckpointError
from lmdeploy.turbomind.checkpoint_files import copy_modules, copy_texts
from lmdeploy.turbomind.safetensors_index import INDEX_NAME as SAFETENSORS_INDEX
from lmdeploy.turbomind.safetensors_index import missing_shards

if TYPE_CHECKING:
    from torch import Tensor

INDEX_NAME = "pytorch_model.bin.index.json"
_WHOLE = "pytorch_model.bin"
_PATTERN = "pytorch_model*.bin"


def is_pickled(model_dir: Path) -> bool:
    """Return whether a directory holds a Hugging Face checkpoint in PyTorch's files."""
    return (model_dir / INDEX_NAME).is_file() or any(model_dir.glob(_PATTERN))


def rewrite(model_dir: Path, target: Path) -> None:
    """Write the same checkpoint with safetensors files.

    Raises `CheckpointError` if files are missing, broken, or hold anything but tensors.
    """
    weight_map = _weight_map(model_dir)
    others = [_WHOLE] if (model_dir / _WHOLE).is_file() else (file.name for file in model_dir.glob(_PATTERN))
    names = sorted(set(weight_map.values()) or set(others))
    missing = {*missing_shards(names), *(name for name in names if not (model_dir / name).is_file())}
    if missing:
        raise CheckpointError(model_dir, [f"{name} is missing" for name in sorted(missing)])
    copy_texts(model_dir, target)
    copy_modules(model_dir, target)
    found: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        print(
            f"{model_dir.name}: rewriting {name} as safetensors, once ({number} of {len(names)})",
            file=sys.stderr,
            flush=True,
        )
        tensors = read_tensors(model_dir / name)
        written = name.replace("pytorch_model", "model").replace(".bin", ".safetensors")
        write_tensors(tensors, target / written)
        found |= dict.fromkeys(tensors, written)
    write_index(found, target)
    absent = sorted(weight_map.keys() - found.keys())
    if absent:
        raise CheckpointError(
            model_dir, [f"{weight_map[name]} lacks tensor {name}, which {INDEX_NAME} puts there" for name in absent]
        )


def read_tensors(path: Path) -> "dict[str, Tensor]":
    """Return the tensors of one file by name; nothing in it is executed.

    Raises `CheckpointError` if it is broken, or holds anything else.
    """
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            path, [f"holds more than tensors, or is broken; nothing of it was executed ({reason})"]
        ) from error
    except (RuntimeError, ValueError, EOFError, KeyError, OSError) as error:
        raise CheckpointError(path, [f"cannot be read ({' '.join(str(error).split())[:200]})"]) from error
    if not isinstance(content, dict):
        raise CheckpointError(path, [f"must hold tensors by name, got {type(content).__name__}"])
    others = [
        f"{key!r} must be the name of a tensor, got {type(value).__name__}"
        for key, value in content.items()
        if not isinstance(key, str) or not isinstance(value, torch.Tensor)
    ]
    if others:
        raise CheckpointError(path, others)
    return content


def write_tensors(tensors: "dict[str, Tensor]", path: Path) -> None:
    """Write a safetensors file. Tensors that share memory get each their own."""
    from safetensors.torch import save_file

    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if storage in seen else tensor.contiguous()
        seen.add(storage)
    save_file(separate, path, metadata={"format": "pt"})


def write_index(weight_map: Mapping[str, str], target: Path) -> None:
    """Write which file each tensor is in, as ``transformers`` needs it where there are several."""
    content = {"metadata": {}, "weight_map": dict(weight_map)}
    (target / SAFETENSORS_INDEX).write_text(json.dumps(content), encoding="utf-8")


def _weight_map(model_dir: Path) -> dict[str, str]:
    """Return which file the index puts each tensor into; empty if there is no index."""
    index = model_dir / INDEX_NAME
    if (model_dir / _WHOLE).is_file() or not index.is_file():  # as in ``transformers``
        return {}
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names: Sequence[str] = list(weight_map.values())
        if any(Path(name).name != name for name in names):
            raise ValueError("it names files elsewhere")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(model_dir, [f"{INDEX_NAME} is broken ({error!r})"]) from error
    return dict(weight_map)
