"""The header of a GGUF file: metadata, and where each tensor is. No tensor is read.

Layout, all little-endian (github.com/ggml-org/ggml, docs/gguf.md): ``GGUF``, uint32 version, uint64 number of tensors,
uint64 number of metadata pairs, the pairs (string key, uint32 type, value), for each tensor its name, uint32 number of
dimensions, uint64 sizes (the innermost first), uint32 type, uint64 offset; then, aligned, the tensors' bytes.
"""

import math
import mmap
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_MAX_LEN = 1 << 32  # of strings and lists; more is a broken file
_DIMENSIONS = 4
_STRING, _LIST = 8, 9
# By the number of a metadata type.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# By the number of a tensor type: name, elements and bytes of a block (ggml.h, ggml_type; gguf-py, GGML_QUANT_SIZES).
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36),
}  # fmt: skip
FLOAT_TYPES = ("F32", "F16", "BF16")
BLOCK_TYPES = tuple(name for name, _, _ in TYPES.values() if name not in FLOAT_TYPES)
# Blocks of fewer bits whose codes kernels have no room for in fewer than 8.
UPCAST_TYPES = "IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS MXFP4 NVFP4".split()
# Those that are distinguished, so that an error can name them.
_UNREAD_TYPES = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
}  # fmt: skip


@dataclass(frozen=True)
class GgufTensor:
    """One tensor: its type's name, shape (row-major, ``[out, in]``), and place and size in bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True)
class GgufHeader:
    """Metadata and tensors of one file, and what is wrong with the tensors although the header can be read."""

    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    problems: tuple[str, ...]


def is_gguf(path: Path) -> bool:
    """Return whether a file begins as GGUF does; False where it cannot be read."""
    with suppress(OSError), path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
    return False


def read_header(path: Path) -> GgufHeader:
    """Return the header of a file.

    Raises `ValueError` if it is no GGUF file, of a version that is not read, or ends within its header; begins as a
    predicate of the file's name, and `OSError` if it cannot be read.
    """
    size = path.stat().st_size
    if size < len(MAGIC):
        raise ValueError("is truncated: it has no header")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content[: len(MAGIC)] != MAGIC:
            if content[:8] == b"version ":
                raise ValueError("is a Git LFS pointer, not the weights themselves: run `git lfs pull`")
            raise ValueError("is no GGUF file: it does not begin with GGUF")
        try:
            return _Reader(content).header(size)
        except (struct.error, IndexError, RecursionError) as error:
            raise ValueError("is truncated: it ends within its header; download it again") from error


class _Reader:
    """Reads one value after another."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._at = len(MAGIC)

    def header(self, size: int) -> GgufHeader:
        version = self._scalar("I")
        if version not in _VERSIONS:
            shown = ", ".join(map(str, _VERSIONS))
            raise ValueError(f"has GGUF version {version}; those read are {shown} (little-endian)")
        tensor_count, pair_count = self._length(), self._length()
        metadata = {}
        for _ in range(pair_count):
            key = self._string()
            metadata[key] = self._value(self._scalar("I"))
        entries = [self._entry() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if type(alignment) is not int or alignment < 1:
            raise ValueError(f"has the alignment {alignment!r}")
        begin = math.ceil(self._at / alignment) * alignment
        tensors, problems, end = {}, [], begin
        for name, shape, number, offset in entries:
            if number not in TYPES:
                kind = _UNREAD_TYPES.get(number, f"number {number}")
                problems.append(
                    f"has tensor {name} of type {kind}, which is not read; those read are "
                    f"{', '.join(kind for kind, _, _ in TYPES.values())}: take a file of one of them"
                )
                continue
            dtype, in_block, block_bytes = TYPES[number]
            if shape and shape[-1] % in_block:
                problems.append(
                    f"has tensor {name} {dtype}{list(shape)}, whose rows are not whole blocks of {in_block}"
                )
                continue
            tensor = GgufTensor(dtype, shape, begin + offset, math.prod(shape) // in_block * block_bytes)
            end = max(end, tensor.offset + tensor.size)
            tensors[name] = tensor
        if end > size:
            problems.append(f"is truncated: expected {end} bytes, got {size}; download it again")
        return GgufHeader(metadata, tensors, tuple(problems))

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        dimensions = self._scalar("I")
        if dimensions > _DIMENSIONS:
            raise ValueError(f"has tensor {name} of {dimensions} dimensions, at most {_DIMENSIONS} are possible")
        sizes = [self._scalar("Q") for _ in range(dimensions)]
        return name, tuple(reversed(sizes)), self._scalar("I"), self._scalar("Q")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _LIST:
            element, count = self._scalar("I"), self._length()
            if element in _SCALARS:
                size = struct.calcsize(f"<{_SCALARS[element]}")
                values = list(struct.unpack_from(f"<{count}{_SCALARS[element]}", self._content, self._at))
                self._at += size * count
                return values
            return [self._value(element) for _ in range(count)]
        if kind not in _SCALARS:
            raise ValueError(f"has metadata of an unknown type, {kind}")
        return self._scalar(_SCALARS[kind])

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._content, self._at)
        self._at += struct.calcsize(f"<{code}")
        return value

    def _length(self) -> int:
        length: int = self._scalar("Q")
        if length > _MAX_LEN:
            raise ValueError(f"is broken: its header has a list of {length} entries")
        return length

    def _string(self) -> str:
        (length,) = struct.unpack_from("<Q", self._content, self._at)
        begin = self._at + 8
        self._at = begin + length
        if self._at > len(self._content):
            raise IndexError(length)
        return self._content[begin : self._at].decode("utf-8", errors="replace")
