"""Checkpoint report of ``lmdeploy check_env --model``: each fact that was read, and the file it is from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rotary_pct", "rotary_emb_base")
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")


def checkpoint_report(model: str) -> dict[str, str]:
    """Return the facts that were read of a model, name to text, in the order to show them.

    Raises `CheckpointError` or `UnsupportedModelError` as ``lmdeploy.turbomind.engine_dir.resolve``.
    """
    from lmdeploy.capacity.groups import memory_groups
    from lmdeploy.paths import locate_model
    from lmdeploy.tokenizer import Tokenizer
    from lmdeploy.turbomind.engine_dir import resolve
    from lmdeploy.turbomind.rewritten import readable_checkpoint

    directory = locate_model(model)
    engine = resolve(directory)
    spec = engine.spec
    if (directory / "spec.json").is_file():  # written by us: the files that were read are elsewhere
        directory = engine.path / "tokenizer"
    tokenizer = Tokenizer(str(directory))
    weights = readable_checkpoint(directory)
    return {
        "model": f"{spec.architecture}, {spec.num_layers} layers, engine {engine.backend}",
        "model files": str(weights),
        **dict(_ends(tokenizer, spec.vocab_size)),
        "chat template": _template(tokenizer, engine.path),
        "vocabulary": _vocabulary(tokenizer, spec.vocab_size),
        "rope": _rope(directory) if spec.ropes else "none",
        "quantization": _quantization(directory),
        "ignored files": ", ".join(_ignored(directory)) or "none",
        **{f"cache group {index}": str(group) for index, group in enumerate(memory_groups(spec))},
    }


def model_program(model: str) -> str:
    """Return the operations of a step of a model, a line each; layers that are alike are shown once.

    Raises `CheckpointError` or `UnsupportedModelError` as ``lmdeploy.turbomind.engine_dir.resolve``.
    """
    from lmdeploy import _turbomind
    from lmdeploy.paths import locate_model
    from lmdeploy.turbomind.engine_dir import resolve

    engine = resolve(locate_model(model), "turbomind")
    return "\n" + _turbomind.model_program(str(engine.path / "spec.json")).rstrip()


def _ends(tokenizer: Any, rows: int) -> Iterator[tuple[str, str]]:
    from lmdeploy.model_metadata.end_tokens import end_tokens

    for end in end_tokens(tokenizer, rows):
        ignored = f"; ignored: {end.ignored}" if end.ignored else ""
        yield f"end token {end.id}", f"{end.text!r}, from {'; '.join(end.sources)}{ignored}"


def _template(tokenizer: Any, engine: Path) -> str:
    from lmdeploy.templates.chosen import ChosenTemplates
    from lmdeploy.tokenizer_readers.settings import TokenizerSettings

    template, file = TokenizerSettings.read(tokenizer.directory).template_and_file
    if template:
        return file + (f" ({', '.join(template)})" if isinstance(template, dict) else "")
    chosen = ChosenTemplates.read(engine / "tokenizer")
    return f"built in: {chosen.builtin}, chosen by the model's name" if chosen else "none"


def _vocabulary(tokenizer: Any, rows: int) -> str:
    beyond = [tokenizer.text_of(token) for token in range(rows, tokenizer.vocab_size)]
    text = f"{rows} rows of the embedding, {tokenizer.vocab_size} tokens of the tokenizer"
    return f"{text}; beyond the embedding, and never generated: {', '.join(beyond[:8])}" if beyond else text


def _rope(directory: Path) -> str:
    from lmdeploy.model_metadata.pooling import read_if_there

    config = read_if_there(directory / "config.json")
    for name, content in (("", config), *((f"{key}.", config.get(key)) for key in ("text_config", "llm_config"))):
        if isinstance(content, dict) and (found := {key: content[key] for key in _ROPE if content.get(key)}):
            return "config.json: " + ", ".join(f"{name}{key} {json.dumps(value)}" for key, value in found.items())
    return "not in config.json: the default of its architecture"


def _quantization(directory: Path) -> str:
    from lmdeploy.model_metadata.pooling import read_if_there
    from lmdeploy.turbomind.quantized import settings_and_file

    config = read_if_there(directory / "config.json")
    given, file = settings_and_file(directory, config, lambda folder, name: read_if_there(folder / name))
    if not given:
        return "none" if not list(directory.glob("weights-*.gguf")) else "as the GGUF file has each tensor"
    bits = f", {given['bits']} bits" if given.get("bits") else ""
    return f"{given['quant_method']}{bits}, from {file}"


def _ignored(directory: Path) -> Iterator[str]:
    """Yield files of weights that are not the model's."""
    from lmdeploy.turbomind.safetensors_index import read_checkpoint

    used = {file.name for file in read_checkpoint(directory).files}
    for pattern in _WEIGHTS if used else ():
        yield from sorted(
            f.name for f in directory.glob(pattern) if f.name not in used and not f.name.startswith("weights-")
        )
