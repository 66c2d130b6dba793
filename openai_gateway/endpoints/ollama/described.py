"""Model descriptions of Ollama's API: details, capabilities, and metadata under GGUF names."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from lmdeploy.capacity.sizes import Sizes
from openai_gateway.models import ServedModel

_CONFIG = "tokenizer/config.json"
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
    family = _read(model.engine_dir, _CONFIG).get("model_type", "")
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _parameter_size(_parameters(model.engine_dir)),
        "quantization_level": _QUANTIZATIONS.get(_read(model.engine_dir, "spec.json").get("dtype", ""), ""),
    }


def _model_info(model: ServedModel, context_len: int | None) -> dict[str, Any]:
    architecture = _read(model.engine_dir, _CONFIG).get("model_type", "unknown")
    spec = _read(model.engine_dir, "spec.json")
    known = {
        "general.parameter_count": _parameters(model.engine_dir) or None,
        f"{architecture}.context_length": context_len,
        f"{architecture}.embedding_length": spec.get("hidden_size"),
        f"{architecture}.block_count": spec.get("num_layers"),
        f"{architecture}.attention.head_count": spec.get("num_heads"),
        f"{architecture}.attention.head_count_kv": spec.get("num_kv_heads"),
        f"{architecture}.vocab_size": spec.get("vocab_size"),
    }
    named = {"general.architecture": architecture, "general.basename": model.name}
    return named | {name: value for name, value in known.items() if value is not None}


@lru_cache(maxsize=192)
def _read(engine_dir: Path | None, name: str) -> dict[str, Any]:
    """Return a JSON file of a model's directory; empty: there is none here."""
    try:
        return {} if engine_dir is None else dict(json.loads((engine_dir / name).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


@lru_cache(maxsize=64)
def _weight_bytes(engine_dir: Path | None) -> int:
    """Return how many bytes the files of a checkpoint have; 0: not known."""
    files = _read(engine_dir, "manifest.json").get("files", ())
    try:
        return sum(Path(engine_dir or "", file).stat().st_size for file in files)
    except OSError:
        return 0


@lru_cache(maxsize=64)
def _parameters(engine_dir: Path | None) -> int:
    """Return how many parameters a decoder has; 0: not known."""
    try:
        return Sizes.of_config(_read(engine_dir, _CONFIG)).parameters
    except ValueError:
        return 0


def _parameter_size(parameters: int) -> str:
    """Return a number of parameters as Ollama writes it: ``134.48M``, ``7.6B``; empty for 0."""
    if not parameters:
        return ""
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.2f}M"
