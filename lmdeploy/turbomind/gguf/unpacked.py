"""Checkpoint directory of a GGUF file, unpacked into the cache once: its texts, and links to the file's parts."""

import hashlib
import json
import logging
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmdeploy.errors import CheckpointError
from lmdeploy.made_once import made_once
from lmdeploy.tokenizer_readers.gguf import with_token, write_tokenizer
from lmdeploy.turbomind.gguf.architectures import architecture_name, architecture_of
from lmdeploy.turbomind.gguf.encoders import is_encoder, write_modules
from lmdeploy.turbomind.gguf.header import GgufHeader, GgufTensor, read_header
from lmdeploy.turbomind.gguf.metadata import Metadata
from lmdeploy.turbomind.gguf.numbers import write_numbers
from lmdeploy.turbomind.gguf.parts import model_name, parts_of, towers_beside
from lmdeploy.turbomind.gguf.stored import FORMAT
from lmdeploy.turbomind.gguf.towers import LINK, tower_for

logger = logging.getLogger(__name__)

_WRITTEN = 7  # of what is written; a change writes it again
# Sampling parameters by GGUF's names.
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
# Small tensors that belong to the configuration: what rotary frequencies are divided by.
_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def unpacked(path: Path, cache: Path) -> Path:
    """Return the checkpoint directory of a GGUF file, or of any part of a split one.

    Raises `CheckpointError` if the file is no GGUF file, ends within its header, lacks parts or metadata, and
    `UnsupportedModelError` if its architecture is not read. ``cache``: where directories are kept.
    """
    parts = [part.resolve() for part in parts_of(path.absolute())]
    states = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in (*parts, *towers_beside(parts[0]))]
    digest = hashlib.sha256(repr((_WRITTEN, states)).encode()).hexdigest()[:16]
    # Templates are chosen by the folder's name.
    return made_once(cache / digest / model_name(path), lambda made: _write(path, parts, made))


def read_metadata(path: Path, parts: list[Path]) -> Metadata:
    """Return metadata and tensors of all parts; raise `CheckpointError` as :func:`unpacked`."""
    headers = [_header(part) for part in parts]
    first = headers[0].metadata
    promised = first.get("split.count", 1) or 1
    if promised != len(parts):
        raise CheckpointError(
            path, [f"is one of {promised} parts: the others, NAME-00001-of-{promised:05}.gguf, must be alongside it"]
        )
    tensors = {name: tensor for header in headers for name, tensor in header.tensors.items()}
    parts_of = {name: part for header, part in zip(headers, parts, strict=True) for name in header.tensors}
    try:
        numbers = {name: _numbers(parts_of[name], tensors[name]) for name in _FACTORS if name in tensors}
    except (OSError, ValueError, struct.error) as error:
        raise CheckpointError(path, [f"its factors of rotary frequencies cannot be read ({error})"]) from error
    return Metadata(first, tensors, numbers)


def _header(path: Path) -> GgufHeader:
    try:
        return read_header(path)
    except ValueError as error:
        raise CheckpointError(path, [str(error)]) from error
    except OSError as error:
        raise CheckpointError(path, [f"cannot be read: {error.strerror}"]) from error


def _numbers(path: Path, tensor: GgufTensor) -> list[float]:
    if tensor.dtype != "F32" or len(tensor.shape) != 1:
        raise ValueError(f"expected F32 of one dimension, got {tensor.dtype}{list(tensor.shape)}")
    with path.open("rb") as file:
        file.seek(tensor.offset)
        return list(struct.unpack(f"<{tensor.shape[0]}f", file.read(4 * tensor.shape[0])))


def _write(path: Path, parts: list[Path], target: Path) -> None:
    metadata = read_metadata(path, parts)
    try:
        config = config_of(metadata)
        if numbers := architecture_of(config["gguf_architecture"]).numbers(metadata):
            write_numbers(target / f"weights-{len(parts) + 1:05}.gguf", numbers)
        if is_encoder(metadata) or metadata.get("pooling_type"):  # decoders make vectors, too
            write_modules(metadata, target)
        tower = tower_for(parts[0], config, metadata.values.get("tokenizer.ggml.tokens"))
        values = metadata.values if tower is None else with_token(metadata.values, tower.tower.token)
        generation = write_tokenizer(values, target)
        if tower is not None:
            config = tower.config_with(config | generation, values["tokenizer.ggml.tokens"])
            (target / "preprocessor_config.json").write_text(json.dumps(tower.processor()), encoding="utf-8")
            (target / LINK).symlink_to(tower.path)
    except (TypeError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(path, [f"its metadata are invalid: {error}"]) from error
    except CheckpointError:
        raise
    except ValueError as error:
        if type(error) is not ValueError:  # UnsupportedModelError
            raise
        raise CheckpointError(path, [str(error)]) from error
    (target / "config.json").write_text(json.dumps(config | generation, indent=1), encoding="utf-8")
    generation |= recommended_sampling(metadata.values)
    (target / "generation_config.json").write_text(json.dumps(generation, indent=1), encoding="utf-8")
    for number, part in enumerate(parts):
        (target / f"weights-{number + 1:05}.gguf").symlink_to(part)


def recommended_sampling(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling fields of generation_config.json: the numbers of ``general.sampling.*``.

    Those that it has no name for are logged.
    """
    prefix = "general.sampling."
    given = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    for key, value in given.items():
        if key not in _SAMPLING and value:
            logger.warning("the GGUF key %s%s = %s is not used", prefix, key, value)
    found = {_SAMPLING[key]: value for key, value in given.items() if key in _SAMPLING}
    return {"do_sample": True, **found} if found else {}


def config_of(metadata: Metadata) -> dict[str, Any]:
    """Return config.json for the model; raise `UnsupportedModelError` if its architecture is not read."""
    name = architecture_name(metadata)
    architecture = architecture_of(name)
    config = architecture.config(metadata) | {
        "architectures": [architecture.published],
        "model_format": FORMAT,
        "gguf_architecture": name,
    }
    rope = config.get("rope_parameters", {})
    if architecture.is_turned and "partial_rotary_factor" in rope:  # the converter reorders whole heads
        raise ValueError(
            f"{metadata.architecture}.rope.dimension_count must be {metadata.head_dim}, the size of a head, got "
            f"{metadata.get('rope.dimension_count')}"
        )
    if "rope_freqs.weight" in metadata.numbers and ("rope_type" in rope or name == "step35"):
        config["gguf_rope_factors"] = metadata.numbers["rope_freqs.weight"]
    metadata.reject_unused()
    return config
