"""Tensor index of a checkpoint, from the headers of its safetensors or GGUF files.

A safetensors file is: uint64 little-endian header size, JSON header, tensor bytes. Indexing reads no tensor bytes.
"""

import json
import math
import re
import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmdeploy.turbomind.gguf.header import read_header
from lmdeploy.turbomind.gguf.parts import is_gguf_file, unstacked

if TYPE_CHECKING:
    import torch

INDEX_NAME = "model.safetensors.index.json"
WHOLE_NAME = "model.safetensors"
_BITS_PER_ELEMENT = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16,
    "U16": 16, "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
_LARGEST_HEADER = 100_000_000  # the format's own limit
# Files that people save alongside a model, or copies of it.
_NO_MODEL = re.compile(
    r"^(adapter|consolidated|ema|optimizer|random_states|scheduler|training)|[._-](ema|lora)(?![a-z])"
)
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
    """The tensors of a checkpoint and everything found wrong with its files."""

    files: list[Path]  # the safetensors files, existing or not
    tensors: dict[str, TensorInfo] = field(default_factory=dict)  # every tensor whose header could be read
    problems: list[str] = field(default_factory=list)  # one sentence each; empty for a whole checkpoint
    # True if some header could not be read, so that ``tensors`` may lack what the checkpoint once had
    has_unread_files: bool = False
    _open: dict[int, Any] = field(default_factory=dict, repr=False, compare=False)

    def opened(self, name: str) -> Any:
        """Return the safetensors file of a tensor, open for ``get_tensor`` and ``get_slice``."""
        from safetensors import safe_open

        number = self.tensors[name].file
        if number not in self._open:
            self._open[number] = safe_open(self.files[number], "pt")
        return self._open[number]

    def tensor(self, name: str) -> "torch.Tensor":
        """Return a tensor of a safetensors file, in the type it is stored in."""
        tensor: torch.Tensor = self.opened(name).get_tensor(name)
        return tensor

    def are_equal(self, first: str, second: str) -> bool:
        """Return whether two tensors of whole safetensors files are there and hold the same bytes."""
        infos = [self.tensors[name] for name in (first, second) if name in self.tensors]
        if self.problems or len(infos) < 2 or len({(info.dtype, info.shape) for info in infos}) != 1:
            return False
        import torch

        one, other = (self.tensor(name).view(torch.uint8) for name in (first, second))
        return bool(torch.equal(one, other))


def weight_files(model_dir: Path, named: Collection[str] = ()) -> list[Path]:
    """Return the safetensors files that are a directory's model, given those that its index names; none: it has none.

    As in ``transformers`` they are model.safetensors, else what the index names. Without either they are the shards,
    else all files but adapters, states of optimizers and second sets.
    """
    if (model_dir / WHOLE_NAME).is_file() and WHOLE_NAME not in named:
        return [model_dir / WHOLE_NAME]
    if named:
        return [model_dir / name for name in sorted(named)]
    files = [file for file in sorted(model_dir.glob("*.safetensors")) if not _NO_MODEL.search(file.name)]
    return [file for file in files if file.name.startswith("model-") and _SHARD_NAME.search(file.name)] or files


def read_checkpoint(model_dir: Path) -> SafetensorsIndex:
    """Return the index of a Hugging Face directory, sharded or not; problems are collected, not raised."""
    weight_map: dict[str, str] = {}
    if (model_dir / INDEX_NAME).is_file():
        try:
            weight_map = json.loads((model_dir / INDEX_NAME).read_text(encoding="utf-8"))["weight_map"]
            named = set(weight_map.values())
            if any(Path(name).name != name for name in named):
                raise ValueError("it names files elsewhere")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return SafetensorsIndex([], problems=[f"{INDEX_NAME} is broken ({error!r})"], has_unread_files=True)
        files = weight_files(model_dir, named)
    else:
        files = weight_files(model_dir) or linked_gguf_files(model_dir)
    index = read_files(files)
    if not files:
        index.problems.append(_why_no_weights(model_dir))
        index.has_unread_files = True
    if not weight_map:
        index.problems += [f"{name} is missing" for name in missing_shards([file.name for file in files])]
    elif not index.has_unread_files and {file.name for file in files} == named:  # else it is of other files
        index.problems += [
            f"{name} lacks tensor {tensor}, which {INDEX_NAME} puts there"
            for tensor, name in sorted(weight_map.items())
            if tensor not in index.tensors
        ]
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
        if twice := sorted(index.tensors.keys() & entries):
            other = index.files[index.tensors[twice[0]].file].name
            index.problems.append(
                f"{path.name} and {other} both hold tensor {twice[0]}: call the model's file {WHOLE_NAME}, or move the "
                "other one elsewhere"
            )
        for name, (dtype, shape, offset) in entries.items():
            index.tensors[name] = TensorInfo(dtype, shape, number, offset)
    return index


def linked_gguf_files(model_dir: Path) -> list[Path]:
    """Return the GGUF files that a directory made for them links to (``lmdeploy.turbomind.gguf.unpacked``)."""
    return [link.resolve() for link in sorted(model_dir.glob("weights-*.gguf"))]


_Entry = tuple[str, tuple[int, ...], int | None]


def _read_gguf_header(path: Path) -> tuple[dict[str, _Entry], list[str]]:
    """Return :func:`_read_header`'s result for a GGUF file."""
    header = read_header(path)
    entries: dict[str, _Entry] = {name: (t.dtype, t.shape, t.offset) for name, t in unstacked(header.tensors).items()}
    return entries, list(header.problems)


def _read_header(path: Path) -> tuple[dict[str, _Entry], list[str]]:
    """Return each tensor's dtype and shape, and what is wrong with the file although its header can be read.

    The third of a tensor's entries is its place, of GGUF files alone.
    """
    size = path.stat().st_size
    header, begin_of_data = _header_of(path, size)
    header.pop("__metadata__", None)
    entries: dict[str, _Entry] = {}
    problems, data_end = [], 0
    for name, entry in header.items():
        dtype, shape, begin, end = _read_entry(name, entry)
        expected = math.prod(shape) * _BITS_PER_ELEMENT[dtype] // 8
        if not 0 <= begin <= end or end - begin != expected:
            problems.append(
                f"has tensor {name} {dtype}{list(shape)} at bytes {begin}..{end}, expected {expected} bytes"
            )
        entries[name] = (dtype, shape, None)
        data_end = max(data_end, end)
    if begin_of_data + data_end > size:
        problems.append(f"is truncated: expected {begin_of_data + data_end} bytes, got {size}; download it again")
    return entries, problems


def _header_of(path: Path, size: int) -> tuple[dict[str, Any], int]:
    """Return the header of a file of this size, and where the tensors' bytes begin."""
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
    return header, 8 + header_size


def _read_entry(name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        if not isinstance(dtype, str) or not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
            raise ValueError(entry)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"has a broken header entry for {name}: {entry}") from error
    if dtype not in _BITS_PER_ELEMENT:
        raise ValueError(f"has tensor {name} of unknown type {dtype}; known: {', '.join(_BITS_PER_ELEMENT)}")
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
    names = sorted(path.name for path in model_dir.iterdir())
    if second := [name for name in names if name.endswith(".safetensors")]:
        return f"has no {WHOLE_NAME} and no shards, only {', '.join(second[:4])}, which is no model: download those too"
    if others := [name for name in names if name.endswith((".bin", ".pth", ".pt", ".gguf"))]:
        advice = "name the GGUF file itself" if others[0].endswith(".gguf") else "save the model again as safetensors"
        return f"has no *.safetensors file, only {', '.join(others[:4])}: {advice}"
    return "has no *.safetensors file: download the weights too, or name the folder that holds them"
