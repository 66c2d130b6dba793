"""Description of a model for the C++ engine: sizes, and the tokens that end a response."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.pytorch.served_by_transformers import model_class_of, reject_unsupported
from lmdeploy.turbomind.checkpoint import bos_token_of, read_config
from lmdeploy.turbomind.quantized import weight_format_of_workers
from lmdeploy.turbomind.spec import AttentionSpec, ModelSpec, NormSpec

WORKER_FILE = "worker.json"
# Names of the context length in configurations.
_LENGTHS = "max_position_embeddings n_positions max_sequence_length seq_length max_seq_len model_max_length".split()
_DEFAULT_LENGTH = 2048


def describe_for_worker(model_dir: Path, model_name: str, custom_module_map: str = "") -> ModelSpec:
    """Return the spec of a Hugging Face directory that a class of the user's, one of ours or ``transformers`` runs.

    Its rows about layers say how large the model is; how it computes is the worker's to know. Raises
    `UnsupportedModelError` if there is no class for the model, and `CheckpointError` if the checkpoint contradicts
    itself. ``model_dir``, ``model_name``: the checkpoint, and what the model is called. ``custom_module_map``: the
    user's classes, as settings have them.
    """
    raw = read_config(model_dir)
    try:
        weight_format_of_workers(raw)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{model_dir}: {error}") from error
    text = _custom_config_of(model_dir, custom_module_map) or _config_of(model_dir, raw)
    heads = int(getattr(text, "num_attention_heads", None) or 1)
    hidden = text.hidden_size
    try:
        return ModelSpec(
            architecture=str((raw.get("architectures") or [type(text).__name__])[0]),
            model_name=model_name,
            dtype=_dtype_name(text, raw),
            vocab_size=text.vocab_size,
            hidden_size=hidden,
            num_layers=text.num_hidden_layers,
            intermediate_size=int(getattr(text, "intermediate_size", None) or 4 * hidden),
            num_heads=heads,
            num_kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
            head_dim=int(getattr(text, "head_dim", None) or hidden // heads),
            norm=NormSpec(eps=1e-5),
            attention=AttentionSpec(scale=1.0, windows=(0,) * text.num_hidden_layers),
            max_position_embeddings=_length_of(text),
            tied_embeddings=bool(getattr(text, "tie_word_embeddings", False)),
            bos_token_id=bos_token_of(model_dir, raw),
            eos_token_ids=(),
            layer_ropes=(-1,) * text.num_hidden_layers,
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(model_dir, [f"config.json is invalid: {' '.join(str(error).split())}"]) from error


def write_worker_file(checkpoint: Path, raw: Mapping[str, Any], target: Path) -> None:
    """Write what says that an engine directory's model runs in workers, and how they are started.

    ``checkpoint``: what they run; a relative path is in ``target``. ``raw``: the model's config.json. ``target``: the
    engine directory.
    """
    content = {"checkpoint": str(checkpoint), "weight_format": weight_format_of_workers(raw)}
    (target / WORKER_FILE).write_text(json.dumps(content), encoding="utf-8")


def _custom_config_of(model_dir: Path, custom_module_map: str) -> Any:
    """Return the configuration of a model of ours or of the user's, in the names that most have; else None."""
    from lmdeploy.pytorch.configurations import AutoModelConfigBuilder
    from lmdeploy.pytorch.models.hf_config import read_hf_config
    from lmdeploy.pytorch.models.module_map import MODULE_MAP, may_run

    config = read_hf_config(model_dir)
    known = {name for name in MODULE_MAP if may_run(name, config)}
    if custom_module_map:
        from lmdeploy.pytorch.models.patch import read_module_map

        known.update(read_module_map(custom_module_map))
    if known.isdisjoint(getattr(config, "architectures", None) or ()):
        return None
    try:
        sizes = AutoModelConfigBuilder.build(config, str(model_dir))
    except ValueError as error:
        raise CheckpointError(model_dir, [str(error)]) from error
    config.vocab_size, config.hidden_size = sizes.vocab_size, sizes.hidden_size
    config.num_hidden_layers, config.num_attention_heads = sizes.num_layers, sizes.num_attention_heads
    config.num_key_value_heads, config.head_dim = sizes.num_key_value_heads, sizes.head_dim
    return config


def _config_of(model_dir: Path, raw: dict[str, Any]) -> Any:
    from huggingface_hub.errors import StrictDataclassError

    from lmdeploy.pytorch.models.hf_config import transformers_config

    name = ", ".join(raw.get("architectures") or [str(raw.get("model_type"))])
    try:
        config = transformers_config(model_dir)
    except (KeyError, ValueError, TypeError, OSError, StrictDataclassError) as error:
        known = "transformers does not know it" if raw.get("model_type") else "config.json has no model_type"
        more = "; the checkpoint's own code is never run" if raw.get("auto_map") else ""
        raise UnsupportedModelError(
            f"{name} cannot be run: {known} ({' '.join(str(error).split())[:200]}){more}"
        ) from error
    reject_unsupported(model_dir, config)
    model_class_of(config)
    return config.get_text_config()


def _length_of(config: Any) -> int:
    found = (getattr(config, name, None) for name in _LENGTHS)
    return next((length for length in found if isinstance(length, int) and length > 1), _DEFAULT_LENGTH)


def _dtype_name(config: Any, raw: dict[str, Any]) -> str:
    name = str(getattr(config, "dtype", None) or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    return name if name in ("float32", "float16", "bfloat16") else "float32"
