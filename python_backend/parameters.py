"""Parameters of a Triton model: its config.pbtxt, overridden by the environment."""

import json
import os
from collections.abc import Mapping
from pathlib import Path


def parameter(args: Mapping[str, str], name: str) -> str:
    """Return a parameter of the model that ``TritonPythonModel.initialize`` was given ``args`` for.

    The environment variable ``LMDEPLOY_<NAME>`` goes before config.pbtxt.
    """
    configured = json.loads(args["model_config"])["parameters"].get(name, {}).get("string_value", "")
    return os.environ.get(f"LMDEPLOY_{name.upper()}") or str(configured)


def model_path(args: Mapping[str, str]) -> str:
    """Return the parameter ``model_path``; a relative one that exists there starts at the model's version directory."""
    path = parameter(args, "model_path")
    alongside = Path(args["model_repository"], args["model_version"], path)
    return str(alongside) if path and not Path(path).is_absolute() and alongside.is_dir() else path
