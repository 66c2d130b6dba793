"""Reads a model's configuration, also of architectures that are published with code of their own: that is never run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmdeploy.errors import CheckpointError
from lmdeploy.turbomind.checkpoint import read_config
from lmdeploy.turbomind.safetensors_index import read_checkpoint

_OUTPUTS = ("lm_head.weight", "output.weight", "transformer.output_layer.weight")
_EMBEDDINGS = ("embed_tokens.weight", "tok_embeddings.weight", "word_embeddings.weight")


def read_hf_config(model_dir: Path) -> Any:
    """Return the configuration of a Hugging Face directory.

    Fields that newer versions of ``transformers`` renamed are there under both names, since models are written with
    either. Raises `CheckpointError` if config.json is missing or is invalid.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING, PretrainedConfig

    raw = with_longrope(read_config(model_dir))
    try:
        model_type = raw.get("model_type")
        # Its `get` sees only what was looked up before.
        kind = CONFIG_MAPPING[model_type] if model_type in CONFIG_MAPPING else PretrainedConfig  # noqa: SIM401
        config = kind.from_dict(raw)
    except (KeyError, TypeError, ValueError, AttributeError, StrictDataclassError) as error:
        raise CheckpointError(model_dir, [f"config.json is invalid: {' '.join(str(error).split())}"]) from error
    if kind is PretrainedConfig:
        config.model_type = str(raw.get("model_type"))
    return _with_older_names(_with_stored_output(config, model_dir))


def transformers_config(model_dir: Path) -> Any:
    """Return the configuration of a directory as ``transformers`` reads it, with its errors."""
    from transformers import AutoConfig

    raw = read_config(model_dir)
    if (named := with_longrope(raw)) is raw:
        return AutoConfig.from_pretrained(model_dir, trust_remote_code=False)
    return type(AutoConfig.for_model(named["model_type"])).from_dict(named)


def with_longrope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config.json in which longrope is not called ``su``, as Phi-3's first releases do."""
    scaling = raw.get("rope_scaling")
    if not isinstance(scaling, Mapping) or scaling.get("type") != "su":
        return raw if isinstance(raw, dict) else dict(raw)
    return {**raw, "rope_scaling": {**scaling, "type": "longrope"}}


def _with_stored_output(config: Any, model_dir: Path) -> Any:
    """Let the embedding be no output layer where the files hold another one, as ``transformers`` does."""
    config.tie_word_embeddings = is_tied = bool(getattr(config, "tie_word_embeddings", False))
    index = read_checkpoint(model_dir) if is_tied else None
    if index is not None and (output := next((name for name in _OUTPUTS if name in index.tensors), None)):
        embedding = next((name for name in index.tensors if name.endswith(_EMBEDDINGS)), "")
        config.tie_word_embeddings = index.are_equal(output, embedding)
    return config


def _with_older_names(config: Any) -> Any:
    """Add what is now part of ``rope_parameters`` where models of the manual look for it."""
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict) or "rope_type" not in rope:
        return config
    if getattr(config, "rope_theta", None) is None and "rope_theta" in rope:
        config.rope_theta = rope["rope_theta"]
    if getattr(config, "rope_scaling", None) is None and rope["rope_type"] != "default":
        config.rope_scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    return config
