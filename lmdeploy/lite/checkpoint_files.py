"""Writer of a quantized checkpoint's files, a layer at a time."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from lmdeploy.lite.source_model import SourceModel
from lmdeploy.turbomind.safetensors_index import INDEX_NAME

_COPIED = (
    "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "chat_template*", "*.tiktoken", "*.model", "*.py", "LICENSE*",
    "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
)  # fmt: skip

_SHARD = 1 << 30  # bytes of what is not in a layer


def converted(tensors: dict[str, Tensor], dtype: str) -> dict[str, Tensor]:
    """Return tensors as they are stored; raise `ValueError` if a number is too large for the type."""
    target = getattr(torch, dtype)
    stored = {}
    for name, tensor in tensors.items():
        is_number = tensor.is_floating_point()
        stored[name] = (tensor.to(target) if is_number else tensor).contiguous().cpu()
        if is_number and not stored[name].isfinite().all():
            raise ValueError(f"tensor {name} has numbers that are too large for {dtype}; use --dtype bfloat16")
    return stored


def rest_shards(model: SourceModel) -> list[list[str]]:
    """Return the names of the tensors that belong to no decoder layer, a file's worth at a time."""
    in_layers = model.tensors_of_layers()
    shards: list[list[str]] = []
    size = _SHARD
    for name, shape in model.shapes.items():
        if name in in_layers:
            continue
        byte_count = 4 * math.prod(shape)
        if size + byte_count > _SHARD:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += byte_count
    return shards


def write_shard(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file that is there whole or not at all."""
    scratch = path.with_name(path.name + ".part")
    scratch.touch()
    mode = scratch.stat().st_mode
    save_file(tensors, scratch, metadata={"format": "pt"})
    scratch.chmod(mode)  # safetensors lets nobody but the owner read what it writes
    scratch.replace(path)


def shard_names(count: int) -> list[str]:
    """Return the names of the safetensors files of a checkpoint."""
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def finish(
    source: Path, scratch: Path, target: Path, shards: list[str], quantization: dict[str, Any], dtype: str
) -> None:
    """Make a checkpoint of finished shards.

    Those that are still in ``scratch`` move to ``target``; index, tokenizer and, last, config.json are added, after the
    checkpoint ``source``; ``quantization`` is what config.json says of the codes.
    """
    from safetensors import safe_open

    weight_map: dict[str, str] = {}
    total = 0
    for name in shards:
        if (scratch / name).exists():
            (scratch / name).replace(target / name)
        with safe_open(str(target / name), "pt") as file:
            for tensor in file.keys():  # noqa: SIM118 - not a mapping
                weight_map[tensor] = name
                total += file.get_tensor(tensor).nbytes
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (target / INDEX_NAME).write_text(json.dumps(index, indent=2), encoding="utf-8")
    for pattern in _COPIED:
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, target / file.name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = quantization
    config["dtype" if "dtype" in config else "torch_dtype"] = dtype
    unfinished = scratch / "config.json"
    unfinished.write_text(json.dumps(config, indent=2), encoding="utf-8")
    unfinished.replace(target / "config.json")
