"""Where models are: the default one, a local directory, a `lmdeploy convert` workspace, a Hugging Face repository."""

import os
import re
from pathlib import Path

from lmdeploy.errors import CheckpointError

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
# What a checkpoint consists of here: no weights in other formats, no code.
_HUB_PATTERNS = ["*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "*.tiktoken"]
# Fetched where there are no safetensors files.
_PICKLED_PATTERNS = ["pytorch_model*.bin", "consolidated.*.pth"]


def cache_root() -> Path:
    """Return the folder of everything cached: ``$LMDEPLOY_CACHE`` or ``~/.cache/lmdeploy``."""
    configured = os.environ.get("LMDEPLOY_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "lmdeploy"


def default_model_dir() -> Path:
    """Return where ``tools/default_model.py`` puts the model used when none is named."""
    return cache_root() / "models" / DEFAULT_MODEL_NAME


def locate_model(model_path: str, revision: str | None = None, download_dir: str | None = None) -> Path:
    """Return the absolute local directory of a model.

    Parameters
    ----------
    model_path
        A directory, a GGUF file or the folder it lies in, or the name of a Hugging Face repository (``owner/name``), or
        ``""`` for the default model. A GGUF file's directory is made, in the cache, when it is first asked for.
    revision, download_dir
        Version and cache folder, for a Hugging Face repository only.

    Raises
    ------
    CheckpointError
        If there is no such directory and no such repository within reach, or a GGUF file that cannot be used.
    UnsupportedModelError
        If a GGUF file is of an architecture that is not read.
    """
    directory = Path(model_path).expanduser() if model_path else default_model_dir()
    gguf = _gguf_file(directory)
    if gguf is not None:
        from lmdeploy.turbomind.gguf.unpacked import unpacked

        return unpacked(gguf, cache_root() / "gguf")
    if directory.is_dir():
        return directory.resolve()
    if not model_path:
        raise CheckpointError(directory, ["the default model is not there: run `python tools/default_model.py`"])
    if directory.exists():
        raise CheckpointError(directory, ["is a file; a model is a directory or a GGUF file"])
    if not _HUB_NAME.fullmatch(model_path) or model_path.startswith("."):
        raise CheckpointError(model_path, ["no such directory"])
    return _download(model_path, revision, download_dir)


def _gguf_file(path: Path) -> Path | None:
    """Return the GGUF file that a path names, or the one in the folder it names; None where there is none."""
    from lmdeploy.turbomind.gguf.parts import SUFFIX, file_in

    if path.is_dir():
        return file_in(path)
    return path if path.suffix == SUFFIX and path.is_file() else None


def model_name_of(directory: Path) -> str:
    """Return the name shown to users for the model in ``directory``.

    A snapshot in the Hugging Face cache (``models--owner--name/snapshots/<commit>``) is named after its repository.
    """
    if directory.parent.name == "snapshots" and "--" in directory.parent.parent.name:
        return directory.parent.parent.name.rsplit("--", 1)[-1]
    return directory.name


def workspace_engine_dir(workspace: Path) -> Path:
    """Return where a workspace of ``lmdeploy convert`` has its engine directory."""
    return workspace / "turbomind" / "1"


def tokenizer_dir(directory: Path) -> Path:
    """Return the folder with the tokenizer files of a checkpoint, an engine directory or a workspace."""
    candidates = (workspace_engine_dir(directory) / "tokenizer", directory / "tokenizer")
    return next((folder for folder in candidates if folder.is_dir()), directory)


def _download(name: str, revision: str | None, download_dir: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    def fetch(patterns: list[str]) -> Path:
        return Path(snapshot_download(name, revision=revision, cache_dir=download_dir, allow_patterns=patterns))

    try:
        folder = fetch(_HUB_PATTERNS)
        if not any(folder.glob("*.safetensors")):
            folder = fetch([*_HUB_PATTERNS, *_PICKLED_PATTERNS])
        return folder.absolute()
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CheckpointError(
            name, [f"no such directory, and the download from Hugging Face failed ({reason})"]
        ) from error
