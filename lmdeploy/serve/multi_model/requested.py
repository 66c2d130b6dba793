"""List of models to serve together: from the command line, from a file, or from a request to load one."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from lmdeploy.errors import nearest_of
from lmdeploy.fields.field import fields_of
from lmdeploy.messages import TurbomindEngineConfig
from lmdeploy.paths import model_name_of
from lmdeploy.pytorch.settings import WorkerSettings, require_valid_settings
from lmdeploy.units import duration

MAX_NAME_LEN = 256  # bytes
VERSION = "@"
_NAME = re.compile(rf"[^{VERSION}\s\x00-\x1f\x7f]+({VERSION}[1-9][0-9]{{0,8}})?")
_BACKENDS = ("turbomind", "pytorch")
_SETTINGS = [field.name for config in (TurbomindEngineConfig, WorkerSettings) for field in fields_of(config)]


@dataclass(frozen=True)
class RequestedModel:
    """A model as somebody asks for it.

    Raises `ValueError` if a value is not what it may be.
    """

    name: str  # what callers call it: a name, or a name with a version, as ``chat@2``
    path: str  # as for ``lmdeploy serve api_server``
    chat_template: str = ""  # a built-in template or a JSON file; empty: the model's own
    backend: str = "turbomind"  # the engine, as for ``lmdeploy serve api_server``
    engine: Mapping[str, Any] = field(default_factory=dict)  # settings of the engine (docs/reference/settings.md)
    # Seconds after its last request after which it leaves memory; negative: it stays; None: as the server has it
    idle_timeout: float | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name.encode()) > MAX_NAME_LEN:
            raise ValueError(
                f"a model's name must be of at most {MAX_NAME_LEN} bytes without spaces, or NAME{VERSION}VERSION with "
                f"a whole number from 1 on, got {self.name[:MAX_NAME_LEN]!r}"
            )
        if not self.path:
            raise ValueError(f"{self.name}: path must name a model's directory")
        if self.backend not in _BACKENDS:
            raise ValueError(f"{self.name}: backend must be one of {', '.join(_BACKENDS)}, got {self.backend!r}")
        for name in self.engine:
            if name not in _SETTINGS:
                raise ValueError(f"{self.name}: the engine has no setting {name}{nearest_of(name, _SETTINGS)}")
        try:
            require_valid_settings(self.engine)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None

    def to_json(self) -> str:
        """Return it as text for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RequestedModel:
        """Return the inverse of `to_json`."""
        return cls(**json.loads(text))


def base_name(name: str) -> str:
    """Return a model's name without its version."""
    return name.partition(VERSION)[0]


def version_of(name: str) -> int:
    """Return a model's version; 0 where it has none."""
    return int(name.partition(VERSION)[2] or 0)


def newest_versions(names: Iterable[str]) -> dict[str, str]:
    """Return which version a name without one stands for: the highest that there is."""
    newest: dict[str, str] = {}
    for name in sorted((name for name in names if VERSION in name), key=version_of):
        newest[base_name(name)] = name
    return newest


def require_distinct(names: Sequence[str]) -> None:
    """Check that each name stands for one model.

    Raises `ValueError` if two models have one name, or one has a version where another of its name has none.
    """
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ValueError(
            f"two models are called {twice}; name each: OTHER={twice}'s path, or {base_name(twice)}{VERSION}2 for a "
            "version of it"
        )
    mixed = next((name for name in newest_versions(names) if name in names), None)
    if mixed is not None:
        raise ValueError(f"{mixed} is served with versions and without; give each a version, as {mixed}{VERSION}1")


def split_argument(argument: str) -> tuple[str, str]:
    """Return name and path of ``NAME=PATH``, or no name and ``PATH``."""
    name, equals, path = argument.partition("=")
    return ("", argument) if not equals or "/" in name or Path(argument).is_dir() else (name, path)


def from_arguments(arguments: Sequence[str], common: Mapping[str, Any]) -> list[RequestedModel]:
    """Return the models of a command line, each ``PATH`` or ``NAME=PATH``.

    Raises `ValueError` if one cannot be what it is called, or two are called the same.
    """
    models = []
    for argument in arguments:
        name, path = split_argument(argument)
        name = name or model_name_of(Path(path).expanduser().absolute())
        models.append(RequestedModel(name=name, path=path, **common))
    require_distinct([model.name for model in models])
    return models


def read_models_file(file: Path, common: Mapping[str, Any]) -> list[RequestedModel]:
    """Return the models of a JSON, TOML or YAML file.

    Raises `ValueError` if the file cannot be read, or something in it is not as it should be; the text says where.
    ``common``: fields for models that do not have their own; settings of the engine are joined one by one.
    """
    try:
        return _models_of(_parsed(file), file, common)
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _parsed(file: Path) -> Any:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        return json.loads(text)
    if file.suffix == ".toml":
        if sys.version_info >= (3, 11):
            import tomllib

            return tomllib.loads(text)
        raise ValueError("TOML needs Python 3.11 or later; write JSON or YAML")
    import yaml  # type: ignore[import-untyped]

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"is no YAML: {error}") from None


def _models_of(content: Any, file: Path, common: Mapping[str, Any]) -> list[RequestedModel]:
    entries = content.get("models") if isinstance(content, dict) else content
    if not isinstance(entries, list) or not entries:
        raise ValueError("must hold a list `models` with a model or more")
    known = [field.name for field in fields(RequestedModel)]
    models = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise ValueError(f"model {number} must be an object with a path, got {entry!r}")
        if unknown := next((key for key in entry if key not in known), None):
            raise ValueError(f"model {number} has an unknown member {unknown}{nearest_of(str(unknown), known)}")
        models.append(_model_of(number, entry, file.parent, common))
    require_distinct([model.name for model in models])
    return models


def _model_of(number: int, entry: Mapping[str, Any], folder: Path, common: Mapping[str, Any]) -> RequestedModel:
    engine = entry.get("engine") or {}
    idle_timeout = entry.get("idle_timeout")
    if idle_timeout is not None:
        idle_timeout = duration(f"model {number}: idle_timeout", idle_timeout)
    texts = {key: value for key, value in entry.items() if key not in ("engine", "idle_timeout")}
    wrong = next((key for key, value in texts.items() if not isinstance(value, str)), None)
    if wrong is not None or not isinstance(engine, dict):
        raise ValueError(f"model {number}: {wrong or 'engine'} must be {'a text' if wrong else 'an object'}")
    if not texts.get("path"):
        raise ValueError(f"model {number} has no path")
    alongside = folder / texts["path"]
    path = str(alongside) if alongside.exists() else texts["path"]
    name = texts.get("name") or model_name_of(Path(path).expanduser().absolute())
    model = RequestedModel(**{**common, **texts, "path": path, "name": name}, idle_timeout=idle_timeout)
    return replace(model, engine={**common.get("engine", {}), **engine})
