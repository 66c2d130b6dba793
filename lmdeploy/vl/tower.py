"""Vision tower and projector, loaded by ``transformers`` without the language model."""

import dataclasses
import functools
import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.logs import without_bars
from lmdeploy.turbomind.text_part import is_of_text, sees
from lmdeploy.vl.families import vision_families
from lmdeploy.vl.families.common import VisionFamily, VisionPart, image_processor
from lmdeploy.vl.tensors import seeing_tensors

_QUANTIZED_ENDINGS = (".qweight", ".weight_packed")
_FAST_BFLOAT16 = {"amx_bf16", "avx512_bf16"}  # flags of processors


def family_in(checkpoint: Path) -> tuple[str, VisionFamily] | None:
    """Return architecture and family of a checkpoint; None if it sees nothing that we can show it."""
    raw = _config_json(checkpoint)
    try:
        named, tower = raw.get("architectures") or [], str((raw.get("vision_config") or {}).get("model_type"))
    except AttributeError:
        return None
    if not sees(raw):
        return None
    known = vision_families()
    return next(((name, known[key]) for name in named for key in ((name, tower), (name, "")) if key in known), None)


def counting_part(checkpoint: Path) -> VisionPart:
    """Return the part that counts an image's tokens.

    Raises `UnsupportedModelError` if it needs something to see that is not there, and `CheckpointError` if the
    checkpoint lacks what it takes to read images.
    """
    from transformers import AutoConfig

    found = family_in(checkpoint)
    native = found[1].native if found else None
    try:
        if native is not None:
            given = checkpoint, _config_json(checkpoint)
            return VisionPart(native.config(given), native.processor(given))
        config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False)
        processor = (found[1].processor if found else image_processor)(checkpoint)
        return VisionPart(config, processor, video=_video_settings(checkpoint))
    except (CheckpointError, UnsupportedModelError):
        raise
    except (OSError, ValueError, ImportError, TypeError, KeyError, AttributeError) as error:
        reason = f"config.json lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:300]
        raise CheckpointError(checkpoint, [f"its image processor cannot be read ({reason})"]) from error


def seeing_part(checkpoint: Path) -> VisionPart:
    """Return the part that embeds images: tower and projector, and nothing of the text part.

    The weights are of bfloat16 where this processor is fast at it and the checkpoint has no more, else of float32.
    Raises `UnsupportedModelError` if they are quantized, and `CheckpointError` if tensors are missing.
    """
    import torch

    found = family_in(checkpoint)
    if found is None:
        raise UnsupportedModelError(f"{checkpoint}: the model reads text only")
    name, native = found[0], found[1].native
    part = counting_part(checkpoint)
    config = part.config
    if native is None:
        tensors = dict(seeing_tensors(checkpoint))
    else:
        name, tensors = config.architectures[0], dict(native.tensors((checkpoint, _config_json(checkpoint))))
    module, _, class_name = name.rpartition(":")
    model_class = getattr(importlib.import_module(module or "transformers"), class_name)
    quantized_dtypes = (torch.int8, torch.float8_e4m3fn)
    quantized = sorted(
        name
        for name, tensor in tensors.items()
        if name.endswith(_QUANTIZED_ENDINGS) or tensor.dtype in quantized_dtypes
    )
    if quantized:
        raise UnsupportedModelError(
            f"{checkpoint}: tensor {quantized[0]} of the vision tower is quantized; the text part alone may be"
        )
    is_narrow = all(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in tensors.values())
    dtype = torch.bfloat16 if is_narrow and _is_fast_at_bfloat16() else torch.float32
    text = config.get_text_config()
    for settings in (config, text):  # what is loaded here is no codes
        if hasattr(settings, "quantization_config"):
            del settings.quantization_config
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = 0, 1, None
    if getattr(text, "layer_types", None):
        text.layer_types = []
    with _quiet():
        model, report = model_class.from_pretrained(
            None, config=config, state_dict=tensors, dtype=dtype, output_loading_info=True
        )
    missing = sorted(name for name in report["missing_keys"] if not is_of_text(name))
    if missing:
        raise CheckpointError(checkpoint, [f"tensor {name} is missing" for name in missing])
    return dataclasses.replace(part, model=model.eval().requires_grad_(False))


def _video_settings(checkpoint: Path) -> dict[str, Any]:
    """Return the settings of the video processor, from where ``transformers`` looks: at last, those for images."""
    nested = _json(checkpoint / "processor_config.json").get("video_processor")
    if isinstance(nested, dict):
        return nested
    return _json(checkpoint / "video_preprocessor_config.json") or _json(checkpoint / "preprocessor_config.json")


def _config_json(checkpoint: Path) -> dict[str, Any]:
    return _json(checkpoint / "config.json")


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


@functools.cache
def _is_fast_at_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return any(flag in flags for flag in _FAST_BFLOAT16)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep ``transformers`` from reporting the text part as missing, and from drawing a bar."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with without_bars():
            yield
    finally:
        logging.set_verbosity(before)
