"""Registry of pulled models: a record of each, which says that it is whole, in ``hub/`` of the cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lmdeploy.hub import HubError
from lmdeploy.hub.choice import HubFile, chosen_files
from lmdeploy.hub.names import HubName
from lmdeploy.scratch import Scratch

_DEFAULT_REVISION = "main"


@dataclass(frozen=True)
class PulledModel:
    """A model whose files are all there, each with the checksum that the hub names."""

    # As in `HubName`
    repository: str
    which: str
    revision: str  # the version that was asked for
    commit: str  # the version that it was then
    hub_cache: str  # the folder in which ``huggingface_hub`` keeps repositories
    main: str  # the file in the snapshot that is named to load the model; empty: the snapshot's folder
    files: Mapping[str, int] = field(default_factory=dict)  # sizes in bytes, by path in the repository

    @property
    def name(self) -> HubName:
        """Name on the hub."""
        return HubName(self.repository, self.which)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.files.values())

    @property
    def folder(self) -> Path:
        """Everything that the cache has of the repository."""
        return Path(self.hub_cache) / f"models--{self.repository.replace('/', '--')}"

    @property
    def snapshot(self) -> Path:
        """The folder with the files of its version."""
        return self.folder / "snapshots" / self.commit

    @property
    def path(self) -> Path:
        """Path to load: a folder, or a GGUF file."""
        return self.snapshot / self.main if self.main else self.snapshot

    def is_whole(self) -> bool:
        """Return whether all files are still there, in their sizes."""
        for name, size in self.files.items():
            try:
                if (self.snapshot / name).stat().st_size != size:
                    return False
            except OSError:
                return False
        return True


def find(
    records: Path, name: HubName, revision: str | None = None, hub_cache: Path | None = None
) -> PulledModel | None:
    """Return a model that was pulled and is whole; None where there is none.

    ``records``: the folder of the records. ``name``, ``revision``: what was asked for; None: the repository's default
    version. ``hub_cache``: where its files lie; None: where ``huggingface_hub`` keeps them unless another folder is
    set.
    """
    model = _read(_record(records, name, revision, hub_cache))
    return model if model is not None and model.is_whole() else None


def pulled_models(records: Path) -> list[PulledModel]:
    """Return all models that are whole, by name."""
    found = (_read(path) for path in records.glob("*.json"))
    return sorted((model for model in found if model is not None and model.is_whole()), key=lambda pull: str(pull.name))


def remember(records: Path, model: PulledModel) -> None:
    """Write down that a model is whole. It is, from one moment to the next."""
    records.mkdir(parents=True, exist_ok=True)
    hub_cache = Path(model.hub_cache)
    with Scratch(records, ".writing-") as scratch:
        text = json.dumps(asdict(model), indent=1)
        (scratch / "record").write_text(text, encoding="utf-8")
        (scratch / "record").replace(_record(records, model.name, model.revision, hub_cache))


def remove(records: Path, name: HubName) -> list[PulledModel]:
    """Remove a model in all versions that were pulled, and what only it has of the files.

    Returns what was removed; empty: there was none.
    """
    paths = {path: model for path in records.glob("*.json") if (model := _read(path)) is not None}
    removed = {path: model for path, model in paths.items() if model.name == name}
    for path in removed:  # first: without its record no model is used
        path.unlink(missing_ok=True)
    kept = [model for path, model in paths.items() if path not in removed]
    for model in removed.values():
        _remove_files(model, {(other.snapshot, file) for other in kept for file in other.files})
    return list(removed.values())


def _remove_files(model: PulledModel, kept: set[tuple[Path, str]]) -> None:
    for file in model.files:
        if (model.snapshot, file) not in kept:
            (model.snapshot / file).unlink(missing_ok=True)
    snapshots = model.folder / "snapshots"
    folders = (path for path in snapshots.rglob("*") if path.is_dir() and not path.is_symlink())
    for folder in sorted(folders, reverse=True):
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()
    used = {path.resolve() for path in snapshots.rglob("*") if not path.is_dir()}
    if not used:
        shutil.rmtree(model.folder, ignore_errors=True)
        return
    for blob in (model.folder / "blobs").iterdir():
        if blob.resolve() not in used:
            blob.unlink(missing_ok=True)


def snapshot_of_others(name: HubName, revision: str | None = None, hub_cache: Path | None = None) -> Path | None:
    """Return a model that another program downloaded; None where there is none.

    Raises `HubError` if there is something, but not what is asked for, or not all of it. ``name``, ``revision``,
    ``hub_cache``: as in `find`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        snapshot = Path(
            snapshot_download(
                name.repository,
                revision=revision,
                cache_dir=hub_cache or default_hub_cache(),
                local_files_only=True,
            )
        )
    except (LocalEntryNotFoundError, OSError) as error:
        part = getattr(error, "snapshot_path", None)  # newer versions refuse a snapshot without files nobody asked for
        if part is None:
            return None
        snapshot = Path(part)
    paths = [path for path in snapshot.rglob("*") if path.is_file()]
    files = [HubFile(path.relative_to(snapshot).as_posix(), path.stat().st_size, "") for path in paths]
    main, _ = chosen_files(files, name.which)
    missing = () if main else _missing(snapshot)
    if missing:
        raise HubError(f"{snapshot} lacks {', '.join(missing)}")
    return snapshot / main if main else snapshot


def _missing(snapshot: Path) -> list[str]:
    """Return the files of a checkpoint, or an adapter, that another program did not download."""
    names = [] if (snapshot / "adapter_config.json").is_file() else ["config.json"]
    indexes = [snapshot / f"{name}.index.json" for name in ("model.safetensors", "pytorch_model.bin")]
    index = next((path for path in indexes if path.is_file()), None)
    if index is not None and not (snapshot / "model.safetensors").is_file():
        names += sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    return [name for name in names if not (snapshot / name).is_file()]


def default_hub_cache() -> Path:
    """Return where ``huggingface_hub`` keeps repositories: ``$HF_HUB_CACHE``, or below ``$HF_HOME``."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def _record(records: Path, name: HubName, revision: str | None, hub_cache: Path | None) -> Path:
    cache_dir = (hub_cache or default_hub_cache()).expanduser().absolute()
    key = json.dumps([name.repository, name.which, revision or _DEFAULT_REVISION, str(cache_dir)])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return records / f"{name.repository.replace('/', '--')}--{digest}.json"


def _read(path: Path) -> PulledModel | None:
    try:
        return PulledModel(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
