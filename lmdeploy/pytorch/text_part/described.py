"""The text part of a vision-language model, as a checkpoint of its own: what workers run, given the rows of images.

It is a folder of the engine directory with a config.json, and a file that says which tensors of the whole checkpoint
are its own and what they are called there. No weight is copied.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmdeploy.errors import UnsupportedModelError
from lmdeploy.pytorch.description import describe_for_worker
from lmdeploy.pytorch.models.hf_config import with_longrope
from lmdeploy.pytorch.text_part.tensors import TEXT_TENSORS
from lmdeploy.turbomind.checkpoint import describe, read_config
from lmdeploy.turbomind.safetensors_index import read_checkpoint
from lmdeploy.turbomind.spec import ImagesSpec, ModelSpec
from lmdeploy.turbomind.text_part import TextPart, sees, text_names, text_part_of

TEXT_PART = "text_part"
_OF_THE_WHOLE = ("auto_map", "quantization_config", "vision_config", "visual")


def describe_text_part(model_dir: Path, model_name: str, target: Path, custom_module_map: str = "") -> ModelSpec | None:
    """Write the folder of a vision-language model into ``target``.

    Raises `UnsupportedModelError` or `CheckpointError` as `describe_for_worker`. Returns its spec; None if workers run
    it as it is.
    """
    raw = read_config(model_dir)
    if not sees(raw) or _is_of_the_user(raw, custom_module_map):
        return None
    whole = describe(model_dir, model_name).spec
    assert whole.images is not None
    if reason := _reason_against(whole.images):
        raise UnsupportedModelError(f"{model_dir}: {reason}, which the PyTorch engine does not support")
    text = text_part_of(model_dir, raw)
    assert text is not None
    target.mkdir(parents=True, exist_ok=True)
    config = _config_of_text(text, whole)
    (target / "config.json").write_text(json.dumps(config, default=str), encoding="utf-8")
    axes = whole.ropes[0].axes if whole.ropes else ()
    content = {
        "checkpoint": str(model_dir),
        "names": text_names(whole, text, read_checkpoint(model_dir)),
        "axes": axes,
        "deeper_layers": whole.images.deepstack_layers,
    }
    (target / TEXT_TENSORS).write_text(json.dumps(content), encoding="utf-8")
    try:
        spec = describe_for_worker(target, model_name, custom_module_map)
    except UnsupportedModelError as error:
        why = str(error).removeprefix(f"{target}: ")
        raise UnsupportedModelError(f"{model_dir}: its text part has no class in the PyTorch engine: {why}") from error
    return dataclasses.replace(
        spec,
        images=whole.images,
        ropes=whole.ropes,
        bos_token_id=whole.bos_token_id,
        tied_embeddings=whole.tied_embeddings,
    )


def _config_of_text(text: TextPart, whole: ModelSpec) -> dict[str, Any]:
    """Return the text part's config.json."""
    config = with_longrope({key: value for key, value in text.raw.items() if key not in _OF_THE_WHOLE})
    config |= {"model_type": _model_type_of(config), "vocab_size": whole.vocab_size, "head_dim": whole.head_dim}
    config |= {"tie_word_embeddings": whole.tied_embeddings, "dtype": whole.dtype, "torch_dtype": whole.dtype}
    rope = config.get("rope_parameters")
    if isinstance(rope, dict):
        config["rope_parameters"] = {key: value for key, value in rope.items() if not key.startswith("mrope")}
    return config


def _is_of_the_user(raw: Mapping[str, Any], custom_module_map: str) -> bool:
    if not custom_module_map:
        return False
    from lmdeploy.pytorch.models.patch import read_module_map

    return not set(read_module_map(custom_module_map)).isdisjoint(raw["architectures"])


def _reason_against(images: ImagesSpec) -> str:
    """Return the features of its attention or weights that only TurboMind computes; empty: none."""
    if images.whole_rows:
        return "the tokens of an image attend to each other"
    if images.cross_layers:
        return "layers attend to images by cross-attention"
    return "image tokens have weights of their own" if images.has_own_weights else ""


def _model_type_of(config: Mapping[str, Any]) -> str:
    """Return the ``model_type`` that ``transformers`` gives to the text part's architecture."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    name = config["architectures"][0]
    kinds = (kind for kind, architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if architecture == name)
    return next(kinds, str(config.get("model_type")))
