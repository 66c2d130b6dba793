"""Spec and engine tensors of a GGUF model."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lmdeploy.turbomind.gguf.architectures import architecture_of
from lmdeploy.turbomind.gguf.header import BLOCK_TYPES, FLOAT_TYPES, TYPES, UPCAST_TYPES
from lmdeploy.turbomind.manifest import WEIGHT_DTYPES, Expression, Load, over_loads, permute, reshape
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex
from lmdeploy.turbomind.spec import ModelSpec

FORMAT = "gguf"  # in config.json's model_format
_TURNED = re.compile(r"blk\.(\d+)\.attn_(q|k)\.(weight|bias)")


def stored_architecture(config: Mapping[str, Any]) -> str | None:
    """Return GGUF's name of the architecture that a config.json was written for; None: for no GGUF file."""
    return config["gguf_architecture"] if config.get("model_format") == FORMAT else None


def has_default_rope(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json was written for a GGUF file and has all that a family asks of one.

    Otherwise it is read as a published one: for frequencies that ``transformers`` computes, or names of its own.
    """
    if config.get("model_format") != FORMAT or "rope_parameters" not in config:
        return False
    rope = config["rope_parameters"]
    kinds = {rope.get("rope_type", "")} if "rope_type" in rope else {part["rope_type"] for part in rope.values()}
    return kinds == {"default"}


def stored_dtype(index: SafetensorsIndex) -> str:
    """Return the type of most matrices; of codes bfloat16, in which the embedding's numbers then are."""
    types = [WEIGHT_DTYPES.get(info.dtype, "bfloat16") for info in index.tensors.values() if len(info.shape) > 1]
    return max(sorted(set(types)), key=types.count) if types else "float32"


def stored_spec(spec: ModelSpec, name: str, config: Mapping[str, Any]) -> ModelSpec:
    """Return the spec for the numbers as they are stored."""
    if architecture_of(name).has_whole_norms:
        spec = dataclasses.replace(spec, norm=dataclasses.replace(spec.norm, offset=0.0))
    factors = config.get("gguf_rope_factors")
    if factors:  # Llama 3.1: what each frequency is divided by; Step 3.5: in layers without a window
        rope, *local = spec.ropes
        kept = factors[: len(rope.inv_freq)] if local else factors
        slower = tuple(f / factor for f, factor in zip(rope.inv_freq, kept, strict=True))
        spec = dataclasses.replace(spec, ropes=(dataclasses.replace(rope, inv_freq=slower), *local))
    return spec


def describe_upcast(index: SafetensorsIndex) -> str:
    """Return a sentence about what codes that become wider take in memory; empty where none do."""
    sizes = {name: size / inputs for name, inputs, size in TYPES.values()}
    found = [info for info in index.tensors.values() if info.dtype in UPCAST_TYPES]
    if not found:
        return ""
    numbers = [math.prod(info.shape) for info in found]
    stored = sum(sizes[info.dtype] * count for info, count in zip(found, numbers, strict=True))
    kinds = ", ".join(sorted({info.dtype for info in found}))
    return (
        f"codes of {kinds} are kept in 8 bits: {sum(numbers) / 1e6:.1f} MB in memory, {stored / 1e6:.1f} MB in the file"
    )


def stored_tensors(spec: ModelSpec, name: str, index: SafetensorsIndex) -> dict[str, Expression]:
    """Return the expression of each engine tensor over GGUF's names."""
    architecture = architecture_of(name)

    def stored(load: Load) -> Expression:
        names = (load.name, load.name.removesuffix(".weight"), f"{load.name}.weight")  # of Falcon-H1 and HY4
        load = dataclasses.replace(load, name=next((name for name in names if name in index.tensors), load.name))
        found = index.tensors.get(load.name)
        if found is not None and found.shape != load.shape and _without_ones(found.shape) == _without_ones(load.shape):
            return reshape(dataclasses.replace(load, shape=found.shape), *load.shape)
        if len(load.shape) == 2:
            load = dataclasses.replace(load, dtypes=(*FLOAT_TYPES, *BLOCK_TYPES))
        turned = _TURNED.fullmatch(load.name) if architecture.is_turned else None
        if turned is None:
            return load
        attention = spec.attention_of(int(turned[1]))
        return _in_halves(load, attention.num_heads if turned[2] == "q" else attention.num_kv_heads)

    tensors = architecture.layout_of(index.tensors).tensors(spec)
    return {engine_name: over_loads(expression, stored) for engine_name, expression in tensors.items()}


def _without_ones(shape: Sequence[int]) -> list[int]:
    """Return a shape as it is compared: a vector, a matrix of one row and one of one column hold the same."""
    return [size for size in shape if size != 1]


def _in_halves(load: Load, heads: int) -> Expression:
    """Return rows in pairs that turn together with each head's first halves of pairs before the second ones."""
    rows, *inputs = load.shape
    pairs = reshape(load, heads, rows // heads // 2, 2, *inputs)
    return reshape(permute(pairs, 0, 2, 1, *range(3, 3 + len(inputs))), rows, *inputs)
