"""LoRA adapters with random weights in the form that PEFT saves, and checkpoints that they are merged into."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
OWN_TEMPLATE = "{% for message in messages %}{{ message.role|upper }}: {{ message.content }}\n{% endfor %}REPLY:"
_WEIGHTS = "adapter_model.safetensors"


def make_adapter(
    directory: Path,
    base: Path,
    *,
    targets: Sequence[str] = ATTENTION + MLP,
    rank: int = 4,
    alpha: float = 8.0,
    ranks: dict[str, int] | None = None,
    seed: int = 1,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Write an adapter of a checkpoint in one safetensors file.

    ``targets``: last parts of the names of the layers that it adds to; ``ranks``: of layers that have another one than
    ``rank``, by the end of their names; ``config``: more fields of adapter_config.json.
    """
    generator = torch.Generator().manual_seed(seed)
    ranks = ranks or {}
    tensors = {}
    for name, tensor in load_file(base / "model.safetensors").items():
        layer, _, kind = name.rpartition(".")
        if kind != "weight" or tensor.dim() != 2 or layer.rpartition(".")[2] not in targets:
            continue
        layer_rank = next((value for end, value in ranks.items() if layer.endswith(end)), rank)
        outputs, inputs = tensor.shape
        down = torch.randn(layer_rank, inputs, generator=generator) / inputs**0.5
        up = torch.randn(outputs, layer_rank, generator=generator) * 0.2
        tensors[f"base_model.model.{layer}.lora_A.weight"] = down.to(dtype)
        tensors[f"base_model.model.{layer}.lora_B.weight"] = up.to(dtype)
    directory.mkdir(parents=True)
    save_file(tensors, directory / _WEIGHTS)
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": list(targets), "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(fields | {"rank_pattern": ranks} | config))
    return directory


def change_tensors(adapter: Path, **tensors: torch.Tensor) -> None:
    """Add or replace tensors, whose names have ``__`` for a dot."""
    old = load_file(adapter / _WEIGHTS)
    save_file(old | {name.replace("__", "."): tensor for name, tensor in tensors.items()}, adapter / _WEIGHTS)


def merge(base: Path, adapter: Path, directory: Path, scale: float = 2.0) -> Path:
    """Write the checkpoint with ``scale B A`` added to each matrix that the adapter has."""
    shutil.copytree(base, directory)
    weights = load_file(base / "model.safetensors")
    tensors = load_file(adapter / _WEIGHTS)
    for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
        layer = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        up = tensors[name.replace("lora_A", "lora_B")].double()
        weight = weights[f"{layer}.weight"]
        weights[f"{layer}.weight"] = (weight.double() + scale * up @ tensors[name].double()).to(weight.dtype)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def adapter_mib(adapter: Path) -> int:
    """Return how many MiB the numbers of an adapter take, rounded up."""
    return -(-sum(tensor.nbytes for tensor in load_file(adapter / _WEIGHTS).values()) // 2**20)
