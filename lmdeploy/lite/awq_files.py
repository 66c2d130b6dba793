"""AWQ checkpoints as AutoAWQ's "gemm" version writes them (backend_cpp/model/stored_codes.h describes the packing)."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from lmdeploy.lite.rounding import Grid, Rounded
from lmdeploy.turbomind.safetensors_index import INDEX_NAME

_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight outputs lies in bits 4j..4j+3 of a word
_COPIED = (
    "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "chat_template*", "*.tiktoken", "*.model", "*.py", "LICENSE*",
)  # fmt: skip


def pack(rounded: Rounded) -> dict[str, Tensor]:
    """Return ``qweight [in, out / 8]``, ``qzeros [groups, out / 8]`` and ``scales [groups, out]`` of 4-bit codes."""
    return {
        "qweight": _words(rounded.codes.T),
        "qzeros": _words(rounded.zeros.T),
        "scales": rounded.scales.T.contiguous().cpu(),
    }


def _words(codes: Tensor) -> Tensor:
    """Pack each eight neighbours of ``[rows, columns]`` into an int32."""
    nibbles = codes.to(torch.int64).cpu().reshape(len(codes), -1, 8)[:, :, list(_ORDER)]
    words = (nibbles << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def quantization_config(grid: Grid) -> dict[str, Any]:
    """Return what config.json says of the codes."""
    return {
        "quant_method": "awq",
        "version": "gemm",
        "bits": grid.bits,
        "group_size": grid.group,
        "zero_point": not grid.is_symmetric,
        "modules_to_not_convert": None,
    }


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


def finish(source: Path, scratch: Path, target: Path, shards: list[str], grid: Grid, dtype: str) -> None:
    """Make a checkpoint of finished shards.

    Those that are still in ``scratch`` move to ``target``; index, tokenizer and, last, config.json are added, after the
    checkpoint ``source``.
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
    config["quantization_config"] = quantization_config(grid)
    config["dtype" if "dtype" in config else "torch_dtype"] = dtype
    unfinished = scratch / "config.json"
    unfinished.write_text(json.dumps(config, indent=2), encoding="utf-8")
    unfinished.replace(target / "config.json")
