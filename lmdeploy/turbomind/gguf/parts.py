"""Files of a GGUF model, and the experts that one tensor of them holds."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePath

from lmdeploy.errors import CheckpointError
from lmdeploy.turbomind.gguf.header import GgufTensor, is_gguf

# The files that one GGUF model consists of: one, or the parts ``NAME-00001-of-0000N.gguf`` of one.
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)


def has_suffix(path: PurePath) -> bool:
    """Return whether a file is called ``*.gguf``."""
    return path.suffix.lower() == ".gguf"


def is_gguf_file(path: Path) -> bool:
    """Return whether a file is GGUF by its first bytes, whatever its name (Ollama's blobs are ``sha256-...``).

    One that is called ``*.gguf`` counts, too: its reader says what is wrong with its header.
    """
    return path.is_file() and (has_suffix(path) or is_gguf(path))


def model_name(path: PurePath) -> str:
    """Return the name of the model in a file: the file's, without what numbers its parts."""
    part = _PART.fullmatch(path.name)
    return part[1] if part else path.stem if has_suffix(path) else path.name


def is_tower(path: PurePath) -> bool:
    """Return whether a file is a vision tower's (``mmproj``), by its name."""
    return "mmproj" in path.name.lower()


def towers_beside(path: Path) -> list[Path]:
    """Return the files of vision towers in the folder of a model's file."""
    return sorted(file for file in path.parent.iterdir() if has_suffix(file) and is_tower(file))


def parts_of(path: Path) -> list[Path]:
    """Return all parts of the model that a file belongs to, in order.

    Raises `CheckpointError` if some are missing; names them.
    """
    part = _PART.fullmatch(path.name)
    if part is None:
        return [path]
    names = [f"{part[1]}-{number:05}-of-{part[3]}{part[4]}" for number in range(1, int(part[3]) + 1)]
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing or not names:
        problems = [f"{name} is missing: all {len(names)} parts must be in one folder" for name in missing]
        raise CheckpointError(path, problems or ["has a number of parts that is invalid"])
    return [path.parent / name for name in names]


def file_in(directory: Path) -> Path | None:
    """Return the first file of the only GGUF model in a folder that is no other checkpoint; None for other folders.

    Raises `CheckpointError` if there are several.
    """
    if (directory / "config.json").exists() or any(directory.glob("*.safetensors")):
        return None
    files = [file for file in directory.iterdir() if is_gguf_file(file) and not is_tower(file)]
    models = {model_name(file): file for file in sorted(files, reverse=True)}
    if len(models) > 1:
        shown = ", ".join(sorted(file.name for file in models.values()))
        raise CheckpointError(directory, [f"holds several GGUF models; name the file: {shown}"])
    return next(iter(models.values()), None)


# Experts that a GGUF file keeps one after another in a tensor: each as its own tensor.
_STACK = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|gate_up|down))_exps\.(weight|bias)")
_DIMENSIONS = {"weight": 3, "bias": 2}


def unstacked(tensors: Mapping[str, GgufTensor]) -> dict[str, GgufTensor]:
    """Return the tensors with ``blk.N.ffn_gate_exps.weight [experts, out, in]`` as ``blk.N.ffn_gate.E.weight``.

    So the oldest files of mixtures of experts name them, too.
    """
    found: dict[str, GgufTensor] = {}
    for name, tensor in tensors.items():
        stack = _STACK.fullmatch(name)
        if stack is None or len(tensor.shape) != _DIMENSIONS[stack[2]]:
            found[name] = tensor
            continue
        count, *shape = tensor.shape
        size = tensor.size // max(count, 1)
        for expert in range(count):
            part = GgufTensor(tensor.dtype, tuple(shape), tensor.offset + expert * size, size)
            found[f"{stack[1]}.{expert}.{stack[2]}"] = part
    return found
