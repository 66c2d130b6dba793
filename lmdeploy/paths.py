"""Where this package keeps what it makes: models and engine directories."""

import os
from pathlib import Path

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"


def cache_root() -> Path:
    """Return the folder of everything cached: ``$LMDEPLOY_CACHE`` or ``~/.cache/lmdeploy``."""
    configured = os.environ.get("LMDEPLOY_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "lmdeploy"


def default_model_dir() -> Path:
    """Return where ``tools/default_model.py`` puts the model used when none is named."""
    return cache_root() / "models" / DEFAULT_MODEL_NAME
