"""A served model as Ollama describes models: details, what it can do, and metadata in the names of GGUF files."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from lmdeploy.turbomind.spec import ModelSpec
from openai_gateway.models import ServedModel

_UNKNOWN = "unknown"  # architecture of a model whose directory is not here
_QUANTIZATIONS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_PARAMETERS = {"repetition_penalty": "repeat_penalty"}  # our names to those of a Modelfile


def listed(model: ServedModel, started: int) -> dict[str, Any]:
    """Return an entry of ``/api/tags``.

    Parameters
    ----------
    started
        When the server was, in seconds since 1970.
    """
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": datetime.fromtimestamp(started, timezone.utc).isoformat(),
        "size": 0,
        "digest": hashlib.sha256(model.name.encode()).hexdigest(),
        "details": _details(model),
    }


def shown(model: ServedModel, started: int, context_len: int | None) -> dict[str, Any]:
    """Return the response of ``/api/show``.

    Parameters
    ----------
    context_len
        Tokens of prompt and response together; None: not known.
    """
    traits = {"embedding": model.pooling, "insert": model.infilling, "thinking": model.thinking}
    capabilities = ["completion", "tools", *(name for name, trait in traits.items() if trait is not None)]
    if model.engine_dir is not None and (model.engine_dir / "vision.json").is_file():
        capabilities.append("vision")
    entry, recommended = listed(model, started), model.sampling_defaults.items()
    return {
        "modelfile": "",
        "parameters": "\n".join(f"{_PARAMETERS.get(name, name)} {value}" for name, value in recommended),
        "template": "",
        "details": entry["details"],
        "model_info": _model_info(model, context_len),
        "capabilities": capabilities,
        "modified_at": entry["modified_at"],
    }


def _details(model: ServedModel) -> dict[str, Any]:
    spec = _spec(model.engine_dir)
    family = _architecture(model.engine_dir)
    known = family != _UNKNOWN
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": family if known else "",
        "families": [family] if known else [],
        "parameter_size": "",
        "quantization_level": "" if spec is None else _QUANTIZATIONS.get(spec.dtype, ""),
    }


def _model_info(model: ServedModel, context_len: int | None) -> dict[str, Any]:
    architecture, spec = _architecture(model.engine_dir), _spec(model.engine_dir)
    info: dict[str, Any] = {"general.architecture": architecture, "general.basename": model.name}
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
def _architecture(engine_dir: Path | None) -> str:
    """Return the ``model_type`` of a checkpoint's configuration: ``llama``, ``qwen2``, ..."""
    if engine_dir is None:
        return _UNKNOWN
    try:
        return str(json.loads((engine_dir / "tokenizer" / "config.json").read_text(encoding="utf-8"))["model_type"])
    except (OSError, ValueError, KeyError, TypeError):
        return _UNKNOWN
