"""Engine settings from the arguments of ``pipeline`` or ``serve``: a config object, or older keyword fields."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lmdeploy import checks
from lmdeploy.errors import unknown_keyword
from lmdeploy.messages import PytorchEngineConfig, TurbomindEngineConfig
from lmdeploy.pytorch.settings import engine_settings, require_valid_settings
from lmdeploy.turbomind.supported import reject_unsupported_engine

EngineConfig = TurbomindEngineConfig | PytorchEngineConfig

_OLDER_NAMES = {"instance_num": "max_batch_size"}
_BACKENDS: dict[str, type[EngineConfig]] = {
    "turbomind": TurbomindEngineConfig,
    "pytorch": PytorchEngineConfig,
}


def engine_config_for(config: EngineConfig | None, backend: str | None, keywords: Mapping[str, Any]) -> EngineConfig:
    """Return the engine settings of a call.

    Raises `ValueError` if the parts contradict each other, or a value is out of range or not supported, and `TypeError`
    if there is no such field. ``config``: the call's ``backend_config``. ``backend``: ``turbomind``, ``pytorch``, or
    None: as the config says. ``keywords``: fields of the configuration by name.
    """
    if config is not None and not isinstance(config, tuple(_BACKENDS.values())):
        names = " or ".join(kind.__name__ for kind in _BACKENDS.values())
        raise TypeError(f"backend_config must be a {names}, got {config!r}")
    checks.require([checks.one_of("backend", backend, (None, *_BACKENDS))])
    if config is not None and backend is not None and not isinstance(config, _BACKENDS[backend]):
        raise ValueError(f"backend={backend!r} contradicts backend_config, a {type(config).__name__}: leave one out")
    config = config or _BACKENDS[backend or "turbomind"]()
    reject_unsupported_engine(config)
    fields = [field.name for field in dataclasses.fields(config)]
    older: Any = config
    given = {_OLDER_NAMES.get(name, name): value for name, value in keywords.items()}
    default = type(config)()
    for name, value in given.items():
        if name in older.older_fields:
            continue
        if name not in fields:
            raise TypeError(unknown_keyword(name, fields))
        configured = getattr(config, name)
        if configured not in (value, getattr(default, name)):
            raise ValueError(f"{name}={value!r} contradicts backend_config.{name}={configured!r}: leave one out")
    return dataclasses.replace(config, **given)


def backend_of(config: object) -> str | None:
    """Return the engine that a configuration is of; None for anything else."""
    return next((name for name, kind in _BACKENDS.items() if isinstance(config, kind)), None)


def settings_of(config: EngineConfig | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return settings as the C++ engine takes them, by name.

    Raises `ValueError` if one is out of range or not supported.
    """
    if config is None:
        return {}
    if isinstance(config, Mapping):
        require_valid_settings(config)
        return dict(config)
    reject_unsupported_engine(config)
    return engine_settings(config) if isinstance(config, PytorchEngineConfig) else dataclasses.asdict(config)


def given_settings(config: EngineConfig) -> dict[str, Any]:
    """Return the settings that differ from the defaults, as the C++ engine takes them, without the model's path."""
    defaults = settings_of(type(config)())
    return {
        name: value
        for name, value in settings_of(config).items()
        if value != defaults[name] and name not in ("revision", "download_dir")
    }
