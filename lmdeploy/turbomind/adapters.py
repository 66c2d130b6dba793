"""Where LoRA adapters are: directories as PEFT saves them, or repositories of Hugging Face."""

from collections.abc import Mapping
from pathlib import Path

from lmdeploy.paths import locate_model


def locate_adapter(path: str) -> Path:
    """Return the directory of an adapter.

    Raises
    ------
    ValueError, OSError
        If there is none, and none can be downloaded.
    """
    return locate_model(path)


def located_adapters(adapters: Mapping[str, str] | None) -> dict[str, str]:
    """Return the directory of each adapter by its name."""
    return {name: str(locate_adapter(path)) for name, path in (adapters or {}).items()}
