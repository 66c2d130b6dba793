"""Decoders without an output layer, for embeddings and classification.

Their architecture is that of the body alone (``Qwen3Model``), or of one with a small head in place of the output layer
(``Qwen3ForSequenceClassification``, read by `lmdeploy.model_metadata.score_head`), or its tensors' names are a body's:
``layers.0...`` where a whole model has ``model.layers.0...``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lmdeploy.turbomind.families import families
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex

_BODIES = ("Model", "ForSequenceClassification")
_WHOLE = "ForCausalLM"
REWARDING = "InternLM2ForRewardModel"
"""An architecture whose head is called ``v_head``; its text ends with the token ``<|reward|>``."""
HEAD_TENSORS = ("score.weight", "score.bias", "v_head.weight")
"""Fields of a small head; the decoder itself does without."""


def with_whole(architectures: object) -> object:
    """Return config.json's ``architectures`` with, after each body, the supported model it is the body of."""
    if not isinstance(architectures, list):
        return architectures
    return [whole for name in architectures for whole in (name, *_wholes(name))]


def is_headless(raw: Mapping[str, Any], index: SafetensorsIndex) -> bool:
    """Return whether a checkpoint is of a body alone."""
    if any(name.endswith("lm_head.weight") for name in index.tensors):
        return False
    return "embed_tokens.weight" in index.tensors or any(map(_wholes, _names(raw.get("architectures"))))


def _names(architectures: object) -> Sequence[object]:
    return architectures if isinstance(architectures, list) else ()


def _wholes(name: object) -> tuple[str, ...]:
    endings = ("ForRewardModel",) if name == REWARDING else _BODIES
    ending = next((ending for ending in endings if isinstance(name, str) and name.endswith(ending)), None)
    whole = "" if ending is None else str(name).removesuffix(ending) + _WHOLE
    return (whole,) if whole in families() else ()
