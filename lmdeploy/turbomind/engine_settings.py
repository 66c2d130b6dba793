"""The engine settings a call of ``pipeline`` or ``serve`` asks for: a config, and fields by name as once was usual."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lmdeploy import checks
from lmdeploy.errors import unknown_keyword
from lmdeploy.messages import PytorchEngineConfig, TurbomindEngineConfig
from lmdeploy.turbomind.supported import refuse_unsupported_engine

_FIELDS = [field.name for field in dataclasses.fields(TurbomindEngineConfig)]
_OLDER_NAMES = {"instance_num": "max_batch_size"}
_BACKENDS: dict[str, type[TurbomindEngineConfig | PytorchEngineConfig]] = {
    "turbomind": TurbomindEngineConfig,
    "pytorch": PytorchEngineConfig,
}


def engine_config_for(
    config: TurbomindEngineConfig | PytorchEngineConfig | None, backend: str | None, keywords: Mapping[str, Any]
) -> TurbomindEngineConfig:
    """Return the engine settings of a call.

    Parameters
    ----------
    config
        The call's ``backend_config``.
    backend
        ``turbomind``, ``pytorch``, or None: as the config says.
    keywords
        Fields of ``TurbomindEngineConfig`` by name.

    Raises
    ------
    ValueError
        If the parts contradict each other, or a value is out of range or not supported.
    TypeError
        If there is no such field.
    """
    if config is not None and not isinstance(config, tuple(_BACKENDS.values())):
        names = " or ".join(kind.__name__ for kind in _BACKENDS.values())
        raise TypeError(f"backend_config must be a {names}, got {config!r}")
    checks.require([checks.one_of("backend", backend, (None, *_BACKENDS))])
    if config is not None and backend is not None and not isinstance(config, _BACKENDS[backend]):
        raise ValueError(f"backend={backend!r} contradicts backend_config, a {type(config).__name__}: leave one out")
    config = config or _BACKENDS[backend or "turbomind"]()
    refuse_unsupported_engine(config)
    assert isinstance(config, TurbomindEngineConfig)
    given = {_OLDER_NAMES.get(name, name): value for name, value in keywords.items()}
    default = TurbomindEngineConfig()
    for name, value in given.items():
        if name not in _FIELDS:
            raise TypeError(unknown_keyword(name, _FIELDS))
        configured = getattr(config, name)
        if configured not in (value, getattr(default, name)):
            raise ValueError(f"{name}={value!r} contradicts backend_config.{name}={configured!r}: leave one out")
    return dataclasses.replace(config, **given)


def given_fields(config: TurbomindEngineConfig) -> dict[str, Any]:
    """Return the fields that differ from their defaults, without those that say where the model is."""
    fields = dataclasses.asdict(config)
    defaults = dataclasses.asdict(type(config)())
    return {
        name: value
        for name, value in fields.items()
        if value != defaults[name] and name not in ("revision", "download_dir")
    }
