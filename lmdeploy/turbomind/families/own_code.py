"""Configs of architectures that are published with their own code: read as Llama's, nothing of theirs is run."""

from collections.abc import Mapping
from typing import Any

_OF_THE_CODE = ("architectures", "auto_map", "model_type", "transformers_version", "torch_dtype", "dtype")


def llama_config(raw: Mapping[str, Any], **changes: Any) -> Any:
    """Return a ``LlamaConfig`` with the fields of config.json, and ``changes`` in their place."""
    from transformers import LlamaConfig

    return LlamaConfig(**({name: value for name, value in raw.items() if name not in _OF_THE_CODE} | changes))
