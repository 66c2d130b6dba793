"""Where models are: the default one, a local directory, a `lmdeploy convert` workspace, a Hugging Face repository."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from lmdeploy.errors import CheckpointError

if TYPE_CHECKING:
    from lmdeploy.hub.names import HubName

DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"


def cache_root() -> Path:
    """Return the folder of everything cached: ``$LMDEPLOY_CACHE`` or ``~/.cache/lmdeploy``."""
    configured = os.environ.get("LMDEPLOY_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "lmdeploy"


def default_model_dir() -> Path:
    """Return where ``tools/default_model.py`` puts the model used when none is named."""
    return cache_root() / "models" / DEFAULT_MODEL_NAME


def pulled_records() -> Path:
    """Return the folder that says which models of a hub are whole (`lmdeploy.hub.pulled`)."""
    return cache_root() / "hub"


def locate_model(model_path: str, revision: str | None = None, download_dir: str | None = None) -> Path:
    """Return the absolute local directory of a model.

    Parameters
    ----------
    model_path
        A directory, a GGUF file or the folder it lies in, or the name of a Hugging Face repository (``owner/name``, or
        ``owner/name:Q4_K_M`` for one of its GGUF files), or ``""`` for the default model. A GGUF file's directory is
        made, in the cache, when it is first asked for. A repository that was pulled is taken as it is.
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
    if directory.exists() or not model_path:
        return _local(directory, is_default=not model_path)
    from lmdeploy.hub.names import hub_name

    name = hub_name(model_path)
    if name is None:
        raise CheckpointError(directory if directory.is_absolute() else model_path, ["no such directory"])
    return _local(_downloaded(name, revision, download_dir))


def _local(directory: Path, *, is_default: bool = False) -> Path:
    gguf = _gguf_file(directory)
    if gguf is not None:
        from lmdeploy.turbomind.gguf.unpacked import unpacked

        return unpacked(gguf, cache_root() / "gguf")
    if directory.is_dir():
        return directory.resolve()
    if is_default:
        raise CheckpointError(directory, ["the default model is not there: run `python tools/default_model.py`"])
    raise CheckpointError(directory, ["is a file; a model is a directory or a GGUF file"])


def _gguf_file(path: Path) -> Path | None:
    """Return the GGUF file that a path names, or the one in the folder it names; None where there is none."""
    from lmdeploy.turbomind.gguf.parts import file_in, is_gguf_file

    if path.is_dir():
        return file_in(path)
    return path if is_gguf_file(path) else None


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


def _downloaded(name: "HubName", revision: str | None, download_dir: str | None) -> Path:
    """Return where the files of a repository are, which are downloaded unless they were."""
    from lmdeploy.hub.errors import HubError, HubUnreachableError
    from lmdeploy.hub.pull import pull
    from lmdeploy.hub.pulled import find, snapshot_of_others

    hub_cache = Path(download_dir) if download_dir else None
    asked = (name, revision, hub_cache)
    try:
        if (found := find(pulled_records(), *asked)) is not None:
            return found.path
        try:
            return pull(pulled_records(), *asked).path
        except HubUnreachableError:
            if (snapshot := snapshot_of_others(*asked)) is not None:
                return snapshot
            raise
    except HubError as error:
        raise CheckpointError(
            str(name), [f"no such directory, and the download from Hugging Face failed ({error})"]
        ) from error
