"""The part of a checkpoint that sees, loaded by ``transformers`` without the part that reads."""

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.turbomind.safetensors_index import read_checkpoint
from lmdeploy.turbomind.text_part import is_of_text
from lmdeploy.vl.families import vision_families
from lmdeploy.vl.families.common import VisionFamily, VisionPart

_FAST_BFLOAT16 = {"amx_bf16", "avx512_bf16"}  # flags of processors


def family_in(checkpoint: Path) -> tuple[str, VisionFamily] | None:
    """Return architecture and family of a checkpoint; None if it sees nothing that we can show it."""
    try:
        config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        named, tower = config.get("architectures") or [], str((config.get("vision_config") or {}).get("model_type"))
    except (OSError, ValueError, AttributeError):
        return None
    known = vision_families()
    return next(((name, known[key]) for name in named for key in ((name, tower), (name, "")) if key in known), None)


def counting_part(checkpoint: Path) -> VisionPart:
    """Return what counts a picture's tokens.

    Raises
    ------
    CheckpointError
        If the checkpoint lacks what it takes to read pictures.
    """
    from transformers import AutoConfig, AutoImageProcessor

    try:
        config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False)
        processor = AutoImageProcessor.from_pretrained(checkpoint, trust_remote_code=False)
    except (OSError, ValueError, ImportError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(checkpoint, [f"its image processor cannot be read ({reason})"]) from error
    return VisionPart(config, processor)


def seeing_part(checkpoint: Path) -> VisionPart:
    """Return what makes embeddings of pictures: tower and projector, and nothing of the text part.

    The weights are of bfloat16 where this processor is fast at it and the checkpoint has no more, else of float32.

    Raises
    ------
    CheckpointError
        If tensors are missing.
    """
    import torch
    import transformers

    found = family_in(checkpoint)
    if found is None:
        raise UnsupportedModelError(f"{checkpoint}: the model reads text only")
    part = counting_part(checkpoint)
    tensors = dict(_tensors(checkpoint))
    is_narrow = all(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in tensors.values())
    dtype = torch.bfloat16 if is_narrow and _is_fast_at_bfloat16() else torch.float32
    config = part.config
    text = config.get_text_config()
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = 0, 1, None
    if getattr(text, "layer_types", None):
        text.layer_types = []
    with _quiet():
        model, report = getattr(transformers, found[0]).from_pretrained(
            None, config=config, state_dict=tensors, dtype=dtype, output_loading_info=True
        )
    missing = sorted(name for name in report["missing_keys"] if not is_of_text(name))
    if missing:
        raise CheckpointError(checkpoint, [f"tensor {name} is missing" for name in missing])
    return VisionPart(config, part.processor, model.eval().requires_grad_(False))


def _tensors(checkpoint: Path) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of the seeing part, as ``transformers`` of today calls them."""
    from safetensors import safe_open

    for file in read_checkpoint(checkpoint).files:
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 (the file is no mapping)
                if not is_of_text(name):
                    yield name, content.get_tensor(name)


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
    had_bar = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if had_bar:
            logging.enable_progress_bar()
