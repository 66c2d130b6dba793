"""Model lookup: the default model, a local directory, a `lmdeploy convert` workspace, a Hugging Face repository."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from lmdeploy.errors import CheckpointError

_MAX_SHOWN = 8  # names, in a message
DEFAULT_MODEL_NAME = "SmolLM2-135M-Instruct"


def cache_root() -> Path:
    """Return the folder of everything cached: ``$LMDEPLOY_CACHE`` or ``~/.cache/lmdeploy``."""
    configured = os.environ.get("LMDEPLOY_CACHE")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "lmdeploy"


def default_model_dir() -> Path:
    """Return where ``tools/default_model.py`` puts the model used when none is named."""
    return _model_cache() / DEFAULT_MODEL_NAME


def pulled_records() -> Path:
    """Return the folder that says which models of a hub are whole (`lmdeploy.hub.pulled`)."""
    return cache_root() / "hub"


def locate_model(
    model_path: str, revision: str | None = None, download_dir: str | None = None, *, may_download: bool = True
) -> Path:
    """Return the absolute local directory of a model.

    A name is looked up in this order: a path, the models that ``make model`` put into the cache, pulled models, the
    hub's cache, the hub.

    Parameters
    ----------
    model_path
        A directory, a GGUF file or the folder it lies in; the name of a cached model; the name of a Hugging Face
        repository (``owner/name``, or ``owner/name:Q4_K_M`` for one of its GGUF files; ``name`` if it was pulled); or
        ``""`` for the default model. A GGUF file's directory is made, in the cache, when it is first asked for.
    revision, download_dir
        Version and cache folder, for a Hugging Face repository only.
    may_download
        Whether the hub is asked for what is not on this machine.

    Raises
    ------
    CheckpointError
        If there is no such model within reach, or a GGUF file that cannot be used.
    UnsupportedModelError
        If a GGUF file is of an architecture that is not read.
    """
    path = Path(model_path or default_model_dir()).expanduser()
    found = path if path.exists() else named_model(model_path, revision, download_dir)
    if found is None:
        found = _downloaded(model_path, revision, download_dir, may_download=may_download)
    return _local(found)


def located_adapters(adapters: Mapping[str, str] | None) -> dict[str, str]:
    """Return the directory of each LoRA adapter, as PEFT saves them, by its name; found as models are."""
    return {name: str(locate_model(path)) for name, path in (adapters or {}).items()}


def named_model(name: str, revision: str | None = None, download_dir: str | None = None) -> Path | None:
    """Return the model of a name on this machine, cached, pulled or in the hub's cache; None if there is none.

    Raises
    ------
    CheckpointError
        If several pulled models have the name.
    """
    from lmdeploy.hub import HubError
    from lmdeploy.hub.names import hub_name
    from lmdeploy.hub.pulled import find, pulled_models, snapshot_of_others

    hub = hub_name(name)
    if hub is not None:
        request = (hub, revision, Path(download_dir) if download_dir else None)
        if (pulled := find(pulled_records(), *request)) is not None:
            return pulled.path
        with suppress(HubError):
            return snapshot_of_others(*request)
    if not name or name.startswith((".", "~")) or "/" in name:
        return None
    if (cached := _model_cache() / name).is_dir():
        return cached
    same = {str(model.name): model.path for model in pulled_models(pulled_records()) if model.name.short == name}
    if len(same) > 1:
        raise CheckpointError(name, [f"several pulled models have this name: {', '.join(same)}; name one of them"])
    return next(iter(same.values()), None)


def describe_model_locations(hub_cache: Path | None = None) -> str:
    """Return where names are looked up, and what is there."""
    from lmdeploy.hub.pulled import default_hub_cache, pulled_models

    hub_cache = hub_cache or default_hub_cache()
    repositories = (path.name.removeprefix("models--").replace("--", "/", 1) for path in hub_cache.glob("models--*"))
    locations = {
        str(_model_cache()): (path.name for path in cached_models()),
        "pulled models": (str(model.name) for model in pulled_models(pulled_records())),
        f"the hub's cache {hub_cache}": repositories,
    }
    return ", ".join(f"{location} ({_shown(sorted(names))})" for location, names in locations.items())


def _shown(names: list[str]) -> str:
    hidden = len(names) - _MAX_SHOWN
    return (", ".join(names[:_MAX_SHOWN]) or "empty") + (f" and {hidden} more" if hidden > 0 else "")


def cached_models() -> list[Path]:
    """Return the directories of the models that ``make model`` put into the cache."""
    return sorted(path for path in _model_cache().glob("[!.]*") if path.is_dir())


def _model_cache() -> Path:
    return cache_root() / "models"


def _local(directory: Path) -> Path:
    gguf = _gguf_file(directory)
    if gguf is not None:
        from lmdeploy.turbomind.gguf.unpacked import unpacked

        return unpacked(gguf, cache_root() / "gguf")
    if directory.is_dir():
        return directory.resolve()
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


def _downloaded(model_path: str, revision: str | None, download_dir: str | None, *, may_download: bool) -> Path:
    """Return where the files of a repository are after they were downloaded, or refuse with where was looked."""
    from lmdeploy.hub import HubError, HubUnreachableError
    from lmdeploy.hub.names import hub_name
    from lmdeploy.hub.pull import pull
    from lmdeploy.hub.pulled import snapshot_of_others

    path = Path(model_path).expanduser()
    if model_path in ("", DEFAULT_MODEL_NAME):
        raise CheckpointError(default_model_dir(), ["the default model is not there: run `make model`"])
    if path.suffix.lower() == ".gguf":
        raise CheckpointError(model_path, ["no such file"])
    name = hub_name(model_path)
    if name is None and (model_path.startswith((".", "~")) or "/" in model_path):
        raise CheckpointError(path if path.is_absolute() else model_path, ["no such directory"])
    hub_cache = Path(download_dir) if download_dir else None
    if name is None:
        problem = "no such directory, and no model of this name; a repository of a hub is called owner/name"
    elif not may_download:
        problem = f"no such directory, and not on this machine: run `lmdeploy pull {name}`"
    else:
        try:
            try:
                return pull(pulled_records(), name, revision, hub_cache).path
            except HubUnreachableError:
                snapshot_of_others(name, revision, hub_cache)  # says what it lacks
                raise
        except HubError as error:
            problem = f"no such directory, and the download from Hugging Face failed ({error})"
    raise CheckpointError(model_path, [problem, f"looked at {describe_model_locations(hub_cache)}"])
