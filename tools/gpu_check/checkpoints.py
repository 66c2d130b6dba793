"""Writes checkpoints of random weights in a second each, however large the model.

Numbers are drawn once for each type, a block that is repeated, and the tensors of the file overlap in it:
the format's header names where each begins. Readers that want tensors apart (the library ``safetensors``) refuse such a
file; the engine reads it, and on the device every tensor has memory of its own.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import IO

import numpy as np

from tools.bench.random_model import write_tokenizer
from tools.gpu_check.shapes import Shape, Tensor

_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I32": 4}
_BLOCK = 1 << 24  # elements drawn
_SPREAD = 0.02
_ALIGNMENT = 4096


def write(shape: Shape, directory: Path) -> None:
    """Write a checkpoint into a directory, which is made; ``config.json`` comes last."""
    directory.mkdir(parents=True, exist_ok=True)
    tensors = list(shape.tensors())
    # Tensors whose elements are drawn alike overlap, the largest says how long the area is.
    sizes: dict[tuple[str, str], int] = {}
    for tensor in tensors:
        kind = _kind(tensor)
        sizes[kind] = max(sizes.get(kind, 0), math.prod(tensor.shape) * _BYTES[tensor.dtype])
    begins, end = {}, 0
    for kind, size in sizes.items():
        begins[kind] = end
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    header = {}
    for tensor in tensors:
        begin = begins[_kind(tensor)]
        size = math.prod(tensor.shape) * _BYTES[tensor.dtype]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, begin + size]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for kind, size in sizes.items():
            _fill(file, _drawn(*kind), -(-size // _ALIGNMENT) * _ALIGNMENT)
    write_tokenizer(directory)
    config = shape.config | {
        "architectures": [shape.architecture],
        "bos_token_id": 256,
        "eos_token_id": 257,
        "torch_dtype": "float16" if shape.weights == "awq" else "bfloat16",
    }
    if quantization := shape.quantization():
        config["quantization_config"] = quantization
    (directory / "config.json").write_text(json.dumps(config, indent=1))


def _kind(tensor: Tensor) -> tuple[str, str]:
    return tensor.dtype, tensor.role if tensor.role in ("norm", "scale") else ""


def _drawn(dtype: str, role: str) -> bytes:
    """Return elements: normal numbers, norms about 1, codes of any value, and scales that make them such numbers."""
    generator = np.random.default_rng(0)
    if dtype == "I32":
        return generator.bytes(4 * _BLOCK)
    if dtype == "F8_E4M3":  # all codes but the two that are no number
        codes = generator.integers(0, 127, _BLOCK, np.uint8) | generator.integers(0, 2, _BLOCK, np.uint8) << 7
        return codes.tobytes()
    count = _BLOCK if not role else 1 << 16
    values = generator.standard_normal(count, np.float32) * np.float32(_SPREAD)
    if role == "norm":
        values += 1
    elif role == "scale":  # of codes of 4 bits, and of 8, whose size is about 4 and 100
        values = np.abs(values) * 0.05 + (_SPREAD / 4 if dtype == "F16" else _SPREAD / 100)
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype(np.float16 if dtype == "F16" else np.float32).tobytes()


def _fill(file: IO[bytes], block: bytes, size: int) -> None:
    while size > 0:
        size -= file.write(block[:size])
