"""Which tensors a checkpoint holds, read from the headers of its safetensors or GGUF files alone.

A safetensors file is: uint64 little-endian header size, JSON header, tensor bytes. Nothing here reads tensor bytes.
"""

import json
import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmdeploy.turbomind.gguf.header import read_header
from lmdeploy.turbomind.gguf.parts import is_gguf_file
from lmdeploy.turbomind.gguf.stacks import apart

INDEX_NAME = "model.safetensors.index.json"
_BYTES_PER_ELEMENT = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
_LARGEST_HEADER = 100_000_000  # the format's own limit
_SHARD_NAME = re.compile(r"-(\d+)-of-(\d+)\.(safetensors|bin)$")


@dataclass(frozen=True)
class TensorInfo:
    """Type and shape of one tensor, and the number of its file in :attr:`SafetensorsIndex.files`.

    ``offset`` is where it begins in a GGUF file; None in a safetensors file.
    """

    dtype: str
    shape: tuple[int, ...]
    file: int
    offset: int | None = None


@dataclass
class SafetensorsIndex:
    """The tensors of a checkpoint and everything found wrong with its files.

    Attributes
    ----------
    files
        The safetensors files, existing or not.
    tensors
        Every tensor whose header could be read.
    problems
        One sentence each; empty for a whole checkpoint.
    has_unread_files
        True if some header could not be read, so that ``tensors`` may lack what the checkpoint once had.
    """

    files: list[Path]
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    has_unread_files: bool = False


def read_checkpoint(model_dir: Path) -> SafetensorsIndex:
    """Return the index of a Hugging Face directory, sharded or not; problems are collected, not raised."""
    index_file = model_dir / INDEX_NAME
    if not index_file.is_file():
        files = sorted(model_dir.glob("*.safetensors")) or linked_gguf_files(model_dir)
        index = read_files(files)
        index.problems += [f"{name} is missing" for name in missing_shards([file.name for file in files])]
        if not files:
            index.problems.append(_why_no_weights(model_dir))
            index.has_unread_files = True
        return index
    try:
        weight_map = json.loads(index_file.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return SafetensorsIndex([], problems=[f"{INDEX_NAME} is broken ({error!r})"], has_unread_files=True)
    index = read_files(model_dir / name for name in names)
    for tensor, name in sorted(weight_map.items()):
        if tensor not in index.tensors and not index.has_unread_files:
            index.problems.append(f"{name} lacks tensor {tensor}, which {INDEX_NAME} puts there")
    return index


def read_files(files: Iterable[Path]) -> SafetensorsIndex:
    """Return the index of the given safetensors or GGUF files; problems are collected, not raised."""
    index = SafetensorsIndex(list(files))
    for number, path in enumerate(index.files):
        try:
            entries, problems = _read_gguf_header(path) if is_gguf_file(path) else _read_header(path)
        except (OSError, ValueError) as error:
            index.problems.append(f"{path.name} {_reason(error)}")
            index.has_unread_files = True
            continue
        index.problems += [f"{path.name} {problem}" for problem in problems]
        for name, (dtype, shape, offset) in entries.items():
            index.tensors[name] = TensorInfo(dtype, shape, number, offset)
    return index


def linked_gguf_files(model_dir: Path) -> list[Path]:
    """Return the GGUF files that a directory made for them links to (``lmdeploy.turbomind.gguf.unpacked``)."""
    return [link.resolve() for link in sorted(model_dir.glob("weights-*.gguf"))]


_Entry = tuple[str, tuple[int, ...], int | None]


def _read_gguf_header(path: Path) -> tuple[dict[str, _Entry], list[str]]:
    """Return what :func:`_read_header` does, of a GGUF file."""
    header = read_header(path)
    entries: dict[str, _Entry] = {name: (t.dtype, t.shape, t.offset) for name, t in apart(header.tensors).items()}
    return entries, list(header.problems)


def _read_header(path: Path) -> tuple[dict[str, _Entry], list[str]]:
    """Return each tensor's dtype and shape, and what is wrong with the file although its header can be read.

    The third of a tensor's entries is its place, of GGUF files alone.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if prefix == b"version ":
            raise ValueError("is a Git LFS pointer, not the weights themselves: run `git lfs pull`")
        if len(prefix) < 8:
            raise ValueError(f"is truncated: {size} bytes are too few for a header; download it again")
        (header_size,) = struct.unpack("<Q", prefix)
        if header_size > _LARGEST_HEADER:
            raise ValueError(f"is no safetensors file: its header would have {header_size} bytes")
        if 8 + header_size > size:
            raise ValueError(
                f"is truncated: its header has {header_size} bytes, the whole file {size}; download it again"
            )
        header = json.loads(file.read(header_size))
    if not isinstance(header, dict):
        raise ValueError("is no safetensors file: its header is no JSON object")
    header.pop("__metadata__", None)
    entries: dict[str, _Entry] = {}
    problems, data_end = [], 0
    for name, entry in header.items():
        dtype, shape, begin, end = _read_entry(name, entry)
        expected = math.prod(shape) * _BYTES_PER_ELEMENT[dtype]
        if not 0 <= begin <= end or end - begin != expected:
            problems.append(
                f"has tensor {name} {dtype}{list(shape)} at bytes {begin}..{end}, expected {expected} bytes"
            )
        entries[name] = (dtype, shape, None)
        data_end = max(data_end, end)
    if 8 + header_size + data_end > size:
        problems.append(f"is truncated: expected {8 + header_size + data_end} bytes, got {size}; download it again")
    return entries, problems


def _read_entry(name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if dtype not in _BYTES_PER_ELEMENT or not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
            raise ValueError(entry)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"has a broken header entry for {name}: {entry}") from error
    return dtype, shape, begin, end


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "is missing"
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return "is no safetensors file: its header is no JSON"
    return str(error)


def missing_shards(names: Sequence[str]) -> list[str]:
    """Return the files that the names of the others promise."""
    promised = set()
    for name in names:
        if match := _SHARD_NAME.search(name):
            width, count = len(match[1]), int(match[2])
            stem = name[: match.start()]
            promised |= {f"{stem}-{n:0{width}}-of-{match[2]}.{match[3]}" for n in range(1, min(count, 10_000) + 1)}
    return sorted(promised - set(names))


def _why_no_weights(model_dir: Path) -> str:
    others = sorted(path.name for path in model_dir.iterdir() if path.suffix in {".bin", ".pth", ".pt", ".gguf"})
    if others:
        advice = "name the GGUF file itself" if others[0].endswith(".gguf") else "save the model again as safetensors"
        return f"has no *.safetensors file, only {', '.join(others[:4])}: {advice}"
    return "has no *.safetensors file: download the weights too, or name the folder that holds them"
