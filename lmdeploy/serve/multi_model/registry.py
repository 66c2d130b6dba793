"""Registry of the models of a tritonserver: a folder with Triton's model repository, and a list of what is served.

The list is a file, so that all processes of a gateway see the same, and a tritonserver that is started again loads what
was served last.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lmdeploy.serve.multi_model.prepared import PreparedModel
from lmdeploy.turbomind.repository import MODELS, copy_models

_LIST = "served.json"
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")  # for names of Triton's models


class RegistryBusyError(Exception):
    """Somebody else changes which models are served."""


@dataclass(frozen=True)
class ServedEntry:
    """A model that is served."""

    name: str  # what callers call it
    # Suffix of the names of its models in Triton: ``ensemble.small``
    suffix: str
    # As in `PreparedModel`
    engine_dir: str
    chat_template: str
    # Where it runs, and how many bytes were set apart for it there
    device: str
    memory: int
    error: str = ""  # why it could not be loaded when the server started; empty: it was

    @property
    def triton_models(self) -> list[str]:
        """Its models in Triton, those that others need first."""
        return triton_models(self.suffix)


@dataclass(frozen=True)
class _Content:
    models: tuple[ServedEntry, ...] = ()
    free: Mapping[str, int] = field(default_factory=dict)  # bytes of a device before anything was loaded
    budget: int | None = None  # bytes of all models together
    idle_timeout: float | None = None  # of models that have none of their own


def triton_models(suffix: str) -> list[str]:
    """Return the models in Triton that make up one served model, those that others need first."""
    ensembles = [name for name in MODELS if name.startswith("ensemble")]
    return [f"{name}{suffix}" for name in (*reversed([name for name in MODELS if name not in ensembles]), *ensembles)]


class Registry:
    """The folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # has to be there; it may be empty
        self.repository = folder / "repository"
        self._list = folder / _LIST
        self._read_at: tuple[int, int] | None = None
        self._content = _Content()

    def models(self) -> tuple[ServedEntry, ...]:
        """Return the models that are served now; reads a file only if it has changed."""
        return self._now().models

    def free_at_start(self) -> Mapping[str, int]:
        """Return the bytes that each device had before anything was loaded, where that is known."""
        return self._now().free

    def budget(self) -> int | None:
        """Return the bytes of all models together, which then take turns; None: each has its own."""
        return self._now().budget

    def write(self, models: Sequence[ServedEntry], free: Mapping[str, int] | None = None, **of_all: Any) -> None:
        """Replace the list, and what is given besides: `free`, ``budget`` and ``idle_timeout``."""
        of_all |= {} if free is None else {"free": dict(free)}
        text = json.dumps(asdict(replace(self._now(), models=tuple(models), **of_all)))
        new = self.folder / f"{_LIST}.{os.getpid()}"
        new.write_text(text, encoding="utf-8")
        new.replace(self._list)

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Let nobody else change what is served; raise `RegistryBusyError` if somebody does already."""
        with (self.folder / "lock").open("w", encoding="ascii") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RegistryBusyError(
                    "another model is being loaded or unloaded; try again when it is done"
                ) from None
            yield

    def new_suffix(self, name: str, taken: Collection[str]) -> str:
        """Return a suffix that says which model it is, and that no other has."""
        base = f".{_UNFIT.sub('_', name)}"
        suffix, number = base, 1
        while suffix in taken:
            number += 1
            suffix = f"{base}-{number}"
        return suffix

    def add_folders(self, model: PreparedModel, suffix: str, cache: float | None, unload_seconds: float) -> None:
        """Write the model's folders into Triton's repository.

        ``cache``: blocks of its cache, or a share of the free memory; None: as the model's settings say.
        ``unload_seconds``: what open requests get once it is being unloaded.
        """
        engine = dict(model.engine) if cache is None else {**model.engine, "cache_max_entry_count": cache}
        settings, path = {"engine_config": json.dumps(engine)}, {"model_path": model.engine_dir}
        names = {"model_name": model.older_name, "served_model_name": model.name}
        idle_timeout = self._now().idle_timeout if model.idle_timeout is None else model.idle_timeout
        seconds = {"idle_timeout": idle_timeout, "unload_seconds": unload_seconds}
        ends = {name: "" if value is None else f"{value:g}" for name, value in seconds.items()}
        parameters = {
            "turbomind": {**path, **settings, **names, **ends},
            "preprocessing": {**path, **settings, "chat_template": model.chat_template},
            "vision": path,
            "postprocessing": path,
        }
        copy_models(self.repository, parameters, suffix)

    def remove_folders(self, suffix: str) -> None:
        """Remove a model's folders."""
        for name in triton_models(suffix):
            shutil.rmtree(self.repository / name, ignore_errors=True)

    def _now(self) -> _Content:
        try:
            state = self._list.stat()
            read_at = (state.st_ino, state.st_mtime_ns)
            if read_at != self._read_at:
                content = json.loads(self._list.read_text(encoding="utf-8"))
                models = tuple(ServedEntry(**model) for model in content.pop("models"))
                self._content, self._read_at = _Content(models, **content), read_at
        except FileNotFoundError:
            return _Content()
        return self._content
