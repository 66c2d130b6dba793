"""Sampling defaults: the parameters that a checkpoint's authors recommend in its ``generation_config.json``.

As in vLLM (``--generation-config``): what a request says wins, and a parameter that the file leaves out is neutral. A
file that names no sampling parameter changes nothing.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from lmdeploy.fields.field import fields_of
from lmdeploy.messages import GenerationConfig
from lmdeploy.paths import tokenizer_dir

logger = logging.getLogger(__name__)

AUTO, NONE = "auto", "none"
"""Values of ``--generation-config``: the checkpoint's own file, or no file. Anything else is a folder with one."""

FILE = "generation_config.json"

_NEUTRAL: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
_FIELDS = {field.name: field for field in fields_of(GenerationConfig) if field.name in _NEUTRAL}


def sampling_defaults(generation_config: str, model_dir: Path | None) -> dict[str, Any]:
    """Return the sampling parameters of requests that do not set them, by names of `GenerationConfig`.

    Raises `ValueError` if the named folder has no such file, or it cannot be used. ``generation_config``: `AUTO`,
    `NONE`, or a folder. ``model_dir``: a checkpoint, an engine directory or a workspace; None: it is not on this
    machine. Returns all of ``temperature``, ``top_p``, ``top_k``, ``min_p`` and ``repetition_penalty``; empty: there is
    no recommendation.
    """
    if generation_config not in (AUTO, NONE):
        return _read(Path(generation_config).expanduser() / FILE)
    file = None if model_dir is None else tokenizer_dir(model_dir) / FILE
    if generation_config == NONE or file is None or not file.is_file():
        return {}
    try:
        return _read(file)
    except ValueError as error:
        logger.warning("%s; its sampling parameters are ignored", error)
        return {}


def is_greedy(temperature: float | None, top_k: int | None, top_p: float | None = None) -> bool:
    """Return whether a request is greedy; sampling defaults do not apply to such requests."""
    return temperature == 0 or top_k == 1 or top_p == 0


def _read(file: Path) -> dict[str, Any]:
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"--generation-config must be {AUTO}, {NONE} or a folder with a {FILE}; {file} cannot be read "
            f"({error.strerror})"
        ) from None
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object")
    given = {name: content[name] for name in _NEUTRAL if content.get(name) is not None}
    if given.get("top_k") == -1:  # vLLM's way to say all
        given["top_k"] = 0
    if problems := [problem for name, value in given.items() if (problem := _FIELDS[name].problem(value))]:
        raise ValueError(f"{file}: {'; '.join(problems)}")
    return {**_NEUTRAL, **given} if given else {}
