"""The checked-in Triton model repository: where it is, and copies of it with parameters filled in."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import lmdeploy

MODELS = ("ensemble", "preprocessing", "turbomind", "postprocessing")


def template_dir() -> Path:
    """Return the model repository of this checkout, or the one installed with the package.

    Raises
    ------
    FileNotFoundError
        If there is neither.
    """
    package = Path(lmdeploy.__file__).resolve().parent
    candidates = (package / "model_repository", package.parent / "model_repository")
    for candidate in candidates:
        if all((candidate / name / "config.pbtxt").is_file() for name in MODELS):
            return candidate
    raise FileNotFoundError(f"no model repository at {' or '.join(map(str, candidates))}: install lmdeploy again")


def copy_models(target: Path, parameters: Mapping[str, Mapping[str, str]]) -> None:
    """Copy the model repository to ``target`` with parameters of some models set.

    Parameters
    ----------
    target
        An empty or missing folder.
    parameters
        Model name to parameter name to value. The parameter must stand in that model's config.pbtxt.
    """
    source = template_dir()
    for name in MODELS:
        shutil.copytree(
            source / name, target / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", ".gitkeep")
        )
        (target / name / "1").mkdir(exist_ok=True)  # Triton wants a version directory even where nothing is in it
        config = target / name / "config.pbtxt"
        text = config.read_text(encoding="utf-8")
        for key, value in parameters.get(name, {}).items():
            text = set_parameter(text, key, value)
        config.write_text(text, encoding="utf-8")


def set_parameter(config: str, key: str, value: str) -> str:
    """Return the text of a config.pbtxt with the value of one of its parameters replaced.

    Raises
    ------
    KeyError
        If there is no such parameter.
    """
    pattern = re.compile(rf'(key:\s*"{re.escape(key)}"\s*value\s*{{\s*string_value:\s*)"(?:[^"\\]|\\.)*"')
    # JSON's escapes are protobuf text format's too, as long as no \u is among them.
    quoted = json.dumps(value, ensure_ascii=False)
    changed, count = pattern.subn(lambda match: match[1] + quoted, config)
    if count != 1:
        raise KeyError(f"config.pbtxt has no parameter {key}")
    return changed
