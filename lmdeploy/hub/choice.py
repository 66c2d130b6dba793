"""Selection of a repository's files that make up the requested model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch, fnmatchcase
from pathlib import PurePosixPath

from lmdeploy.hub import HubError
from lmdeploy.turbomind.gguf.parts import has_suffix, is_tower, model_name

# Files of a checkpoint: no weights in other formats, no code.
_PATTERNS = ("*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "*.tiktoken", "*_linear.pt")
# Fetched where there are no safetensors files.
_PICKLED_PATTERNS = ("pytorch_model*.bin", "consolidated.*.pth")
_USUAL = "Q4_K_M"  # of several GGUF files, where none is named


@dataclass(frozen=True)
class HubFile:
    """A file of a repository."""

    name: str  # its path in the repository
    size: int  # in bytes
    # SHA-256 of what Git LFS holds (64 hexadecimal digits), else the SHA-1 by which Git names the file (40)
    digest: str


def chosen_files(files: Sequence[HubFile], which: str) -> tuple[str, list[HubFile]]:
    """Return where the model lies in the repository, and its files.

    Raises `HubError` if there is no model among the files, or several are meant. ``files``: all files of the
    repository. ``which``: as in `lmdeploy.hub.names.HubName`. Returns a GGUF model's first file, or an empty text: the
    whole folder. A vision tower's file comes last.
    """
    if not which:
        weights = _matching(files, ("*.safetensors",)) or _matching(files, _PICKLED_PATTERNS)
        if weights:
            texts = [pattern for pattern in _PATTERNS if pattern != "*.safetensors"]
            return "", [*_matching(files, texts), *weights]
    models = _gguf_models(files)
    if not models:
        expected = "GGUF files" if which else "weights that are read (safetensors, pytorch_model.bin or GGUF)"
        raise HubError(f"the repository has no {expected}")
    fitting = {name: parts for name, parts in models.items() if _fits(parts, which)}
    if not which and len(models) > 1:
        fitting = {name: parts for name, parts in models.items() if _fits(parts, _USUAL)}
    if len(fitting) != 1:
        problem = "no GGUF file is" if not fitting else "several GGUF files are"
        meant = f"meant by {which!r}" if which else "named"
        raise HubError(f"{problem} {meant}; the repository has {', '.join(sorted(models))}")
    (parts,) = fitting.values()
    return parts[0].name, [*parts, *_towers(files, parts[0])]


def _towers(files: Iterable[HubFile], model: HubFile) -> list[HubFile]:
    """Return the vision tower in the folder of a GGUF model: of several, one of half precision if there is one."""
    folder = PurePosixPath(model.name).parent
    found = [file for file in files if (path := PurePosixPath(file.name)).parent == folder and is_tower(path)]
    return sorted(found, key=lambda file: ("f16" not in file.name.lower().replace("bf16", ""), file.name))[:1]


def _matching(files: Iterable[HubFile], patterns: Iterable[str]) -> list[HubFile]:
    return [file for file in files if any(fnmatch(file.name, pattern) for pattern in patterns)]


def _gguf_models(files: Iterable[HubFile]) -> dict[str, list[HubFile]]:
    """Return the parts of each GGUF model, in order, by the model's path without what numbers the parts."""
    models: dict[str, list[HubFile]] = {}
    for file in sorted(files, key=lambda file: file.name):
        path = PurePosixPath(file.name)
        if has_suffix(path) and not is_tower(path):
            models.setdefault(str(path.with_name(model_name(path))), []).append(file)
    return models


def _fits(parts: Sequence[HubFile], which: str) -> bool:
    """Return whether a model is meant: by a pattern of its files' names, or a word of its name."""
    path = PurePosixPath(parts[0].name)
    if any(fnmatchcase(name, which) for part in parts for name in (part.name, PurePosixPath(part.name).name)):
        return True
    return re.search(rf"(?<![A-Z0-9]){re.escape(which)}(?![A-Z0-9_])", model_name(path), re.I) is not None
