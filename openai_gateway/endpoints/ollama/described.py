"""Model descriptions of Ollama's API: details, capabilities, and metadata under GGUF names."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from lmdeploy.capacity.sizes import Sizes
from lmdeploy.errors import CheckpointError
from lmdeploy.turbomind.spec import ModelSpec
from openai_gateway.models import ServedModel

_UNKNOWN = "unknown"  # architecture of a model whose directory is not here
_QUANTIZATIONS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_PARAMETERS = {"repetition_penalty": "repeat_penalty"}  # our names to those of a Modelfile


def listed(model: ServedModel, started: int) -> dict[str, Any]:
    """Return an entry of ``/api/tags``.

    ``started``: when the server was, in seconds since 1970.
    """
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": datetime.fromtimestamp(started, timezone.utc).isoformat(),
        "size": _weight_bytes(model.engine_dir),
        "digest": hashlib.sha256(model.name.encode()).hexdigest(),
        "details": _details(model),
    }


def shown(model: ServedModel, started: int, context_len: int | None) -> dict[str, Any]:
    """Return the response of ``/api/show``.

    ``context_len``: tokens of prompt and response together; None: not known.
    """
    entry, recommended = listed(model, started), model.sampling_defaults.items()
    return {
        "modelfile": "",
        "parameters": "\n".join(f"{_PARAMETERS.get(name, name)} {value}" for name, value in recommended),
        "template": "",
        "details": entry["details"],
        "model_info": _model_info(model, context_len),
        "capabilities": capabilities(model),
        "modified_at": entry["modified_at"],
    }


def capabilities(model: ServedModel) -> list[str]:
    """Return a model's capabilities, in Ollama's words."""
    traits = {"embedding": model.pooling, "insert": model.infilling, "thinking": model.thinking}
    found = ["completion", "tools", *(name for name, trait in traits.items() if trait is not None)]
    sees = model.engine_dir is not None and not model.is_text_only
    return [*found, "vision"] if sees else found


def _details(model: ServedModel) -> dict[str, Any]:
    spec = _spec(model.engine_dir)
    family = _architecture(model.engine_dir)
    known = family != _UNKNOWN
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": family if known else "",
        "families": [family] if known else [],
        "parameter_size": _parameter_size(_parameters(model.engine_dir)),
        "quantization_level": "" if spec is None else _QUANTIZATIONS.get(spec.dtype, ""),
    }


def _model_info(model: ServedModel, context_len: int | None) -> dict[str, Any]:
    architecture, spec = _architecture(model.engine_dir), _spec(model.engine_dir)
    info: dict[str, Any] = {"general.architecture": architecture, "general.basename": model.name}
    if parameters := _parameters(model.engine_dir):
        info["general.parameter_count"] = parameters
    if context_len is not None:
        info[f"{architecture}.context_length"] = context_len
    if spec is not None:
        info |= {
            f"{architecture}.embedding_length": spec.hidden_size,
            f"{architecture}.block_count": spec.num_layers,
            f"{architecture}.attention.head_count": spec.num_heads,
            f"{architecture}.attention.head_count_kv": spec.num_kv_heads,
            f"{architecture}.vocab_size": spec.vocab_size,
        }
    return info


@lru_cache(maxsize=64)
def _spec(engine_dir: Path | None) -> ModelSpec | None:
    if engine_dir is None:
        return None
    try:
        return ModelSpec.from_json((engine_dir / "spec.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=64)
def _weight_bytes(engine_dir: Path | None) -> int:
    """Return how many bytes the files of a checkpoint have; 0: not known."""
    if engine_dir is None:
        return 0
    try:
        files = json.loads((engine_dir / "manifest.json").read_text(encoding="utf-8"))["files"]
        return sum((engine_dir / file).stat().st_size for file in files)
    except (OSError, ValueError, KeyError, TypeError):
        return 0


@lru_cache(maxsize=64)
def _parameters(engine_dir: Path | None) -> int:
    """Return how many parameters a decoder has; 0: not known."""
    if engine_dir is None:
        return 0
    try:
        return Sizes.read(engine_dir / "tokenizer" / "config.json").parameters
    except CheckpointError:
        return 0


def _parameter_size(parameters: int) -> str:
    """Return a number of parameters as Ollama writes it: ``134.48M``, ``7.6B``; empty for 0."""
    if not parameters:
        return ""
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.2f}M"


@lru_cache(maxsize=64)
def _architecture(engine_dir: Path | None) -> str:
    """Return the ``model_type`` of a checkpoint's configuration: ``llama``, ``qwen2``, ..."""
    if engine_dir is None:
        return _UNKNOWN
    try:
        return str(json.loads((engine_dir / "tokenizer" / "config.json").read_text(encoding="utf-8"))["model_type"])
    except (OSError, ValueError, KeyError, TypeError):
        return _UNKNOWN
