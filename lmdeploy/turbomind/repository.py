"""The checked-in Triton model repository: where it is, and copies of it with parameters filled in."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdeploy
from lmdeploy.paths import workspace_engine_dir

# The name of a model in its own config.pbtxt, and in the ensembles.
_NAME = re.compile(r'^(name: |\s+model_name: )"(\w+)"', re.MULTILINE)
MODELS = ("ensemble", "ensemble_vision", "preprocessing", "vision", "turbomind", "postprocessing")


def template_dir() -> Path:
    """Return the model repository of this checkout, or the one installed with the package.

    Raises `FileNotFoundError` if there is neither.
    """
    package = Path(lmdeploy.__file__).resolve().parent
    candidates = (package / "model_repository", package.parent / "model_repository")
    for candidate in candidates:
        if all((candidate / name / "config.pbtxt").is_file() for name in MODELS):
            return candidate
    raise FileNotFoundError(f"no model repository at {' or '.join(map(str, candidates))}: install lmdeploy again")


def copy_models(target: Path, parameters: Mapping[str, Mapping[str, str]], suffix: str = "") -> None:
    """Copy the model repository to ``target`` with parameters of some models set.

    ``target``: an empty or missing folder. ``parameters``: model name to parameter name to value. The parameter must be
    in that model's config.pbtxt. ``suffix``: put after the name of each model, so that a repository can hold several
    copies.
    """
    source = template_dir()
    for name in MODELS:
        shutil.copytree(
            source / name,
            target / f"{name}{suffix}",
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__", ".gitkeep"),
        )
        folder = target / f"{name}{suffix}"
        (folder / "1").mkdir(exist_ok=True)  # Triton wants a version directory even where nothing is in it
        config = folder / "config.pbtxt"
        text = config.read_text(encoding="utf-8")
        for key, value in parameters.get(name, {}).items():
            text = set_parameter(text, key, value)
        text = _NAME.sub(lambda match: f'{match[1]}"{match[2]}{suffix}"', text)
        config.write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class StoredParameters:
    """Parameters that ``lmdeploy convert`` wrote into a workspace's config files; empty where nothing was."""

    model_name: str = ""  # shown to clients
    chat_template: str = ""  # a name, or JSON text
    engine_config: Mapping[str, Any] = field(default_factory=dict)  # fields of ``TurbomindEngineConfig``


def stored_parameters(directory: Path) -> StoredParameters:
    """Return the stored parameters of a workspace; empty ones for any other directory.

    Raises `ValueError` if its ``engine_config`` is no JSON object.
    """
    if not is_workspace(directory):
        return StoredParameters()
    engine, prompts = (_config_text(directory / name) for name in ("turbomind", "preprocessing"))
    text = get_parameter(engine, "engine_config") or "{}"
    try:
        engine_config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{directory}: engine_config of turbomind/config.pbtxt is no JSON ({error})") from error
    if not isinstance(engine_config, dict):
        raise ValueError(f"{directory}: engine_config of turbomind/config.pbtxt must be a JSON object, got {text}")
    name = get_parameter(engine, "served_model_name") or get_parameter(engine, "model_name")
    return StoredParameters(name, get_parameter(prompts, "chat_template"), engine_config)


def is_workspace(directory: Path) -> bool:
    """Return whether ``lmdeploy convert`` wrote a directory."""
    return (workspace_engine_dir(directory) / "spec.json").is_file()


def get_parameter(config: str, key: str) -> str:
    """Return the value of a parameter in the text of a config.pbtxt; empty if it is not there."""
    found = re.search(_parameter_pattern(key), config)
    value: str = json.loads(found[2]) if found else ""
    return value


def set_parameter(config: str, key: str, value: str) -> str:
    """Return the text of a config.pbtxt with the value of one of its parameters replaced.

    Raises `KeyError` if there is no such parameter.
    """
    # JSON's escapes are protobuf text format's too, as long as no \u is among them.
    quoted = json.dumps(value, ensure_ascii=False)
    changed, count = re.subn(_parameter_pattern(key), lambda match: match[1] + quoted, config)
    if count != 1:
        raise KeyError(f"config.pbtxt has no parameter {key}")
    return changed


def _config_text(model: Path) -> str:
    file = model / "config.pbtxt"
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def _parameter_pattern(key: str) -> str:
    """Return a pattern of a parameter: the text before its value, and the value in quotes."""
    return rf'(key:\s*"{re.escape(key)}"\s*value\s*{{\s*string_value:\s*)("(?:[^"\\]|\\.)*")'
