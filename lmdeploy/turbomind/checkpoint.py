"""Read a Hugging Face directory into the engine's terms, and check it: spec and manifest, no weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.turbomind.families import Family, family_of
from lmdeploy.turbomind.families.common import Checkpoint
from lmdeploy.turbomind.manifest import WEIGHT_DTYPES, Manifest, find_problems
from lmdeploy.turbomind.quantized import Quantization, is_zero_bias_beside_codes, weight_format, with_codes
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex, read_checkpoint
from lmdeploy.turbomind.spec import ModelSpec
from lmdeploy.turbomind.spec_problems import is_size, size_problem

_REQUIRED_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_OPTIONAL_SIZES = ("num_key_value_heads", "head_dim", "max_position_embeddings")


@dataclass(frozen=True)
class Description:
    """A checkpoint in the engine's terms."""

    spec: ModelSpec
    manifest: Manifest


def describe(model_dir: Path, model_name: str) -> Description:
    """Return spec and manifest of a Hugging Face directory.

    Raises
    ------
    UnsupportedModelError
        If the engine cannot run this model.
    CheckpointError
        If the checkpoint is missing, truncated, half-written or contradicts itself; lists everything wrong.
    """
    config = read_config(model_dir)
    architecture, family = family_of(config.get("architectures"))
    quantization = Quantization.from_config(config)
    index = read_checkpoint(model_dir)
    size_problems = _size_problems(config)
    if size_problems:
        raise CheckpointError(model_dir, size_problems + index.problems)
    bos, eos = _boundary_tokens(model_dir, config)
    checkpoint = Checkpoint(architecture, model_name, _dtype_of(index), bos, eos)
    spec = _spec_of(model_dir, family, checkpoint)
    tensors = dict(family.tensors(spec))
    if quantization is not None:
        tensors = with_codes(tensors, quantization, index)
    problems = find_problems(
        tensors, index, lambda name: family.may_ignore(name, spec) or is_zero_bias_beside_codes(name, index)
    )
    if problems:
        raise CheckpointError(model_dir, problems)
    return Description(spec, Manifest.build(tensors, index, weight_format(config)))


def read_config(model_dir: Path, name: str = "config.json") -> dict[str, Any]:
    """Return a JSON object file of a checkpoint.

    Raises
    ------
    CheckpointError
        If the file is missing or no JSON object.
    """
    try:
        config = json.loads((model_dir / name).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(model_dir, [f"{name} is missing"]) from error
    except (OSError, ValueError) as error:
        raise CheckpointError(model_dir, [f"{name} cannot be read ({error})"]) from error
    if not isinstance(config, dict):
        raise CheckpointError(model_dir, [f"{name} must hold a JSON object, got {type(config).__name__}"])
    return config


def _size_problems(config: dict[str, Any]) -> list[str]:
    """Return what is wrong with the sizes, before ``transformers`` divides by them or fills in another model's."""
    problems = []
    for name in (*_REQUIRED_SIZES, *_OPTIONAL_SIZES):
        value = config.get(name)
        if value is None and name in _OPTIONAL_SIZES:
            continue
        if not is_size(value):
            problems.append(size_problem(f"config.json: {name}", value))
    if not problems and config.get("head_dim") is None and config["hidden_size"] % config["num_attention_heads"]:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        problems.append(f"config.json: hidden_size must be a multiple of num_attention_heads {heads}, got {hidden}")
    return problems


def _spec_of(model_dir: Path, family: Family, checkpoint: Checkpoint) -> ModelSpec:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        return family.spec(AutoConfig.from_pretrained(model_dir), checkpoint)
    except UnsupportedModelError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(model_dir, [f"config.json makes no sense: {reason}"]) from error


def _dtype_of(index: SafetensorsIndex) -> str:
    """Return the type of most weights; config.json may name another one."""
    types = [WEIGHT_DTYPES[info.dtype] for info in index.tensors.values() if info.dtype in WEIGHT_DTYPES]
    return max(sorted(set(types)), key=types.count) if types else "float32"


def _boundary_tokens(model_dir: Path, config: dict[str, Any]) -> tuple[int | None, tuple[int, ...]]:
    """Return the bos token and the tokens that end an answer; generation_config.json goes before config.json."""
    generation = {}
    if (model_dir / "generation_config.json").is_file():
        generation = read_config(model_dir, "generation_config.json")
    bos, eos = (
        generation.get(key) if generation.get(key) is not None else config.get(key)
        for key in ("bos_token_id", "eos_token_id")
    )
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(type(token) is int for token in ids):
        raise CheckpointError(model_dir, [f"eos_token_id must be a token id or a list of them, got {eos!r}"])
    return (bos if type(bos) is int else None), tuple(ids)
