"""Tiny checkpoints stored as codes; AWQ's and GPTQ's are packed by an encoder that shares nothing with the engine.

Facts, by source:

* AWQ, "gemm": AutoAWQ, ``WQLinear_GEMM.from_linear``. ``qweight [in, out / 8]``, ``qzeros [groups, out / 8]``; nibbles
  of a word, from the lowest, are outputs 0 2 4 6 1 3 5 7.
* GPTQ: AutoGPTQ / GPTQModel, ``QuantLinear.pack``. ``qweight [in / n, out]``, ``qzeros [groups, out / n]``, ``g_idx
  [in]``; values from the lowest bits up. The first format stores words of zero points minus a word of ones
  (``convert_gptq_v2_to_v1_format``).
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Scheme:
    """How a checkpoint is quantized; ``unquantized`` names layers (by ending) that stay numbers."""

    method: str = "awq"
    bits: int = 4
    group_size: int = 32
    sym: bool = False
    desc_act: bool = False
    checkpoint_format: str = "gptq"
    unquantized: tuple[str, ...] = ("lm_head",)
    scales: torch.dtype = torch.float16

    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"quant_method": self.method, "bits": self.bits, "group_size": self.group_size}
        if self.method == "awq":
            return config | {"version": "gemm", "zero_point": not self.sym, "modules_to_not_convert": None}
        return config | {"desc_act": self.desc_act, "sym": self.sym, "checkpoint_format": self.checkpoint_format}

    def encode(self, weight: torch.Tensor, layer: str = "") -> tuple[Tensors, torch.Tensor]:
        """Return a checkpoint's tensors of a layer ``X``, by ``X.<name>``, and the values that they stand for."""
        # As GPTQ does, which orders inputs by what they carry: layers with the same inputs have the same order.
        seeds = {"q_proj": 1, "k_proj": 1, "v_proj": 1, "gate_proj": 2, "up_proj": 2, "w1": 2, "w3": 2}
        quantized = quantize(weight, self, seeds.get(layer.rpartition(".")[2], 3))
        return tensors_of(quantized, self), quantized.dequantized()


@dataclass(frozen=True)
class Quantized:
    """A matrix ``[out, in]`` as codes ``[in, out]``, zero points and scales ``[groups, out]``, groups ``[in]``."""

    values: np.ndarray
    zeros: np.ndarray
    scales: torch.Tensor
    groups: np.ndarray

    def dequantized(self) -> torch.Tensor:
        steps = torch.from_numpy(self.values - self.zeros[self.groups]).float()
        return (steps * self.scales.float()[self.groups]).T.contiguous()


Change = Callable[[dict[str, Any], dict[str, Any]], object]  # of config.json's quantization_config, and of the tensors


def quantize(weight: torch.Tensor, scheme: Scheme, seed: int = 3) -> Quantized:
    """Round a matrix ``[out, in]`` to the nearest codes."""
    values = weight.double().numpy().T
    in_features, top = len(values), 2**scheme.bits - 1
    size = in_features if scheme.group_size == -1 else scheme.group_size
    groups = np.arange(in_features) // size
    if scheme.desc_act:
        groups = np.random.default_rng(seed).permutation(groups)
    scales, zeros = [], []
    for g in range(groups.max() + 1):
        low, high = values[groups == g].min(0).clip(max=0), values[groups == g].max(0).clip(min=0)
        if scheme.sym:
            high = np.maximum(high, -low)
            low = -high
        scale = np.maximum(high - low, 1e-8) / top
        scales.append(scale)
        zeros.append(np.full_like(scale, (top + 1) // 2) if scheme.sym else np.round(-low / scale))
    stored = torch.tensor(np.array(scales)).to(scheme.scales)
    zero = np.array(zeros).astype(np.int64)
    quantized = np.round(values / stored.double().numpy()[groups]) + zero[groups]
    return Quantized(quantized.clip(0, top).astype(np.int64), zero, stored, groups)


def pack(values: np.ndarray, bits: int, axis: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """Pack codes bit by bit into words along an axis; ``order``: which of a word's values comes first, second ..."""
    rows = np.moveaxis(values, axis, -1)
    if order:
        rows = rows.reshape(*rows.shape[:-1], -1, len(order))[..., order].reshape(rows.shape)
    single = (rows[..., None] >> np.arange(bits)) & 1
    words = single.reshape(*rows.shape[:-1], -1, 32).astype(np.uint64) << np.arange(32, dtype=np.uint64)
    return np.moveaxis(words.sum(-1).astype(np.uint32), -1, axis).copy()


def tensors_of(matrix: Quantized, scheme: Scheme) -> dict[str, torch.Tensor]:
    """Return a checkpoint's tensors of a layer: ``qweight``, ``qzeros``, ``scales`` and for GPTQ ``g_idx``."""
    if scheme.method == "awq":
        words, zeros = pack(matrix.values, 4, 1, AWQ_ORDER), pack(matrix.zeros, 4, 1, AWQ_ORDER)
    else:
        is_first = scheme.checkpoint_format == "gptq"
        is_split = is_first and scheme.bits == 3  # words do not end with values
        zeros = (matrix.zeros - 1) & 7 if is_split else matrix.zeros
        words, zeros = pack(matrix.values, scheme.bits, 0), pack(zeros, scheme.bits, 1)
        if is_first and scheme.bits != 3:
            ones = sum(1 << shift for shift in range(0, 32, scheme.bits))
            zeros = (zeros.astype(np.int64) - ones).astype(np.uint32)
    made = {"qweight": words.view(np.int32), "qzeros": zeros.view(np.int32)}
    tensors = {name: torch.from_numpy(value) for name, value in made.items()} | {"scales": matrix.scales}
    if scheme.method == "gptq":
        tensors["g_idx"] = torch.from_numpy(matrix.groups.astype(np.int32))
    return tensors


def copy_files(source: Path, target: Path) -> dict[str, torch.Tensor]:
    """Copy a checkpoint into a new folder, but for its weights; return these."""
    target.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    for file in source.iterdir():
        if file.suffix == ".safetensors":
            tensors |= load_file(file)
        else:
            shutil.copyfile(file, target / file.name)
    return tensors


def save_quantized(source: Path, target: Path, tensors: dict[str, torch.Tensor], quantization: dict[str, Any]) -> None:
    """Write the weights of a copied checkpoint, and what its config.json says of them."""
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))


def is_linear(name: str) -> bool:
    """Return whether a tensor is the weight of a layer that tools quantize."""
    return name.endswith(
        ("_proj.weight", "_proj_with_mqa.weight", "lm_head.weight", ".w1.weight", ".w2.weight", ".w3.weight")
    )


def quantize_checkpoint(source: Path, target: Path, form: Any, linear: Callable[[str], bool] | None = None) -> Tensors:
    """Write a copy of a checkpoint in a form, as :class:`Scheme`; return the values ``X.weight`` of its codes."""
    tensors, values = copy_files(source, target), {}
    for name in filter(linear or getattr(form, "takes", is_linear), list(tensors)):
        layer = name.removesuffix(".weight")
        if not layer.endswith(form.unquantized):
            stored, values[name] = form.encode(tensors.pop(name), layer)
            tensors |= {f"{layer}.{part}": tensor.contiguous() for part, tensor in stored.items()}
    save_quantized(source, target, tensors, form.config())
    return values


def with_values(source: Path, target: Path, values: Tensors) -> Path:
    """Write a copy of a checkpoint with other weights; return its folder."""
    tensors = copy_files(source, target) | {name: value.contiguous() for name, value in values.items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def damage(directory: Path, change: Change) -> Path:
    """Change a checkpoint on disk; return ``directory``."""
    config, tensors = json.loads((directory / "config.json").read_text()), load_file(directory / "model.safetensors")
    change(config["quantization_config"], tensors)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")
    return directory


def decode_awq(directory: Path, group_size: int) -> dict[str, torch.Tensor]:
    """Return a checkpoint's tensors with the numbers ``X.weight`` in place of AWQ codes."""
    tensors = stored_tensors(directory)
    for layer in [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]:
        quantized, zeros = (_unpack_awq(tensors.pop(f"{layer}.{part}").numpy()) for part in ("qweight", "qzeros"))
        groups = np.arange(len(quantized)) // (len(quantized) if group_size == -1 else group_size)
        stored = Quantized(quantized, zeros, tensors.pop(f"{layer}.scales"), groups)
        tensors[f"{layer}.weight"] = stored.dequantized()
    return tensors


def _unpack_awq(words: np.ndarray) -> np.ndarray:
    nibbles = (words.view(np.uint32)[..., None] >> (4 * np.arange(8, dtype=np.uint32))) & 15
    values = np.empty_like(nibbles)
    values[..., list(AWQ_ORDER)] = nibbles
    return values.reshape(len(words), -1).astype(np.int64)


def decode_gptq(directory: Path, bits: int = 4) -> dict[str, torch.Tensor]:
    """Return a checkpoint's tensors with the numbers ``X.weight`` in place of GPTQ codes."""
    quantization = json.loads((directory / "config.json").read_text())["quantization_config"]
    tensors = stored_tensors(directory)
    for layer in [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]:
        quantized = _unpack_words(tensors.pop(f"{layer}.qweight").T.contiguous().numpy(), bits).T
        zeros = _unpack_words(tensors.pop(f"{layer}.qzeros").numpy(), bits)
        if quantization["checkpoint_format"] == "gptq":
            zeros = zeros + 1
        stored = Quantized(quantized, zeros, tensors.pop(f"{layer}.scales"), tensors.pop(f"{layer}.g_idx").numpy())
        tensors[f"{layer}.weight"] = stored.dequantized()
    return tensors


def _unpack_words(words: np.ndarray, bits: int) -> np.ndarray:
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    values = (words.view(np.uint32)[..., None] >> shifts) & ((1 << bits) - 1)
    return values.reshape(len(words), -1).astype(np.int64)


def decode_smooth_quant(directory: Path) -> dict[str, torch.Tensor]:
    """Return a checkpoint's tensors with the numbers ``X.weight`` in place of 8-bit codes with scales."""
    tensors = stored_tensors(directory)
    for layer in [name.removesuffix(".scale") for name in tensors if name.endswith(".scale")]:
        tensors[f"{layer}.weight"] = tensors[f"{layer}.weight"].float() * tensors.pop(f"{layer}.scale")
    return tensors


def stored_tensors(directory: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of all files of a checkpoint."""
    tensors: dict[str, torch.Tensor] = {}
    for file in directory.glob("*.safetensors"):
        tensors |= load_file(file)
    return tensors


def save_dequantized(source: Path, target: Path) -> Path:
    """Write a checkpoint of the numbers that the codes of another one stand for; return its folder."""
    config = json.loads((source / "config.json").read_text())
    quantization = config.pop("quantization_config")
    match quantization["quant_method"]:
        case "awq":
            tensors = decode_awq(source, quantization["group_size"])
        case "gptq":
            tensors = decode_gptq(source, quantization["bits"])
        case _:
            tensors = decode_smooth_quant(source)
    target.mkdir()
    for file in source.iterdir():
        if file.suffix != ".safetensors" and not file.name.endswith("index.json"):
            shutil.copyfile(file, target / file.name)
    (target / "config.json").write_text(json.dumps(config))
    kept = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(kept, target / "model.safetensors", metadata={"format": "pt"})
    return target
