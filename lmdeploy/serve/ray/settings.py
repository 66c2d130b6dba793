"""Settings of a deployment on Ray Serve: the ``args`` of its configuration file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from lmdeploy.serve.keys import read_keys, split_keys, variable_of

FAILED = "lmdeploy serve api_server ended:"
"""Prefix of the error of a replica that could not start."""

_KEYS, _KEYS_FILE = "api-keys", "api-keys-file"
# Options of `lmdeploy serve api_server` that a replica sets itself, or that Ray does the work of.
_NOT_FOR_REPLICAS = {
    "server-name": "Ray Serve's HTTP options say where it listens",
    "server-port": "Ray Serve's HTTP options say where it listens",
    "ssl": "Ray Serve's HTTP options have the certificate",
    "proxy-url": "Ray Serve is the proxy",
    "proxy-key": "Ray Serve is the proxy",
    "node-key": "Ray Serve is the proxy",
    "admin-keys": "adapters are those of `adapters`, the same in each replica",
    "admin-keys-file": "adapters are those of `adapters`, the same in each replica",
    "allow-origins": "the ingress answers no web pages of other origins; a reverse proxy before it can",
    "files-dir": "the ingress forwards no files and batches, which one server keeps",
    "models-file": "each replica has one model",
    "webui": "lmdeploy serve gradio http://... serves a chat page for it",
    "webui-port": "lmdeploy serve gradio http://... serves a chat page for it",
    "triton-server-name": "each replica has its own tritonserver",
    "triton-http-port": "each replica has its own tritonserver",
    "triton-grpc-port": "each replica has its own tritonserver",
    "triton-metrics-port": "each replica has its own tritonserver",
}


class RaySettings(BaseModel):
    """Settings of the application."""

    model_config = ConfigDict(extra="forbid")

    model: str = ""  # as for ``lmdeploy serve api_server``; a path must be there on each machine
    # Further options of ``lmdeploy serve api_server`` for each replica, by name: a value, a list, a mapping for what is
    # written ``NAME=VALUE``, or true
    options: dict[str, Any] = {}
    replicas: int = Field(1, ge=1)  # at least this many
    max_replicas: int | None = Field(None, ge=1)  # at most this many; None: as many as `replicas`, always
    # Requests waiting before the batch, on average, from which on there should be one replica more
    waiting_per_replica: float = Field(4, gt=0)
    target_requests: float = Field(48, gt=0)  # open requests that a replica should have
    # How long there must be too few or too many replicas before anything is done
    upscale_seconds: float = Field(30, ge=0)
    downscale_seconds: float = Field(600, ge=0)
    look_back_seconds: float = Field(30, gt=0)  # the time that metrics are averaged over
    # Resources that Ray reserves for a replica. With 0 GPUs a replica sees none
    cpus: float = Field(1, ge=0)
    gpus: float = Field(0, ge=0)
    ingresses: int = Field(1, ge=1)  # processes that take requests from Ray's proxies
    # Between two questions whether a replica is healthy; one that is not three times in a row is replaced
    health_seconds: float = Field(5, gt=0)
    drain_seconds: float = Field(60, gt=0)  # what open requests get when a replica is taken away

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        named = {name.replace("_", "-"): value for name, value in options.items()}
        for name, why in _NOT_FOR_REPLICAS.items():
            if name in named:
                raise ValueError(f"{name} is no option of a replica: {why}")
        return named

    @model_validator(mode="after")
    def _check_replicas(self) -> RaySettings:
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(f"max_replicas must be at least replicas ({self.replicas}), got {self.max_replicas}")
        return self

    @property
    def api_keys(self) -> tuple[str, ...]:
        """The keys of callers: of the options `api-keys` and `api-keys-file`, and of ``LMDEPLOY_API_KEYS`` here.

        Raises `ValueError` if the file cannot be read, or holds none.
        """
        given, file = self.options.get(_KEYS, ()), self.options.get(_KEYS_FILE)
        texts = [given] if isinstance(given, str) else [str(word) for word in given]
        keys = split_keys([*texts, os.environ.get(variable_of(_KEYS), "")])
        return (*keys, *(read_keys(str(file)) if file else ()))

    def arguments(self) -> list[str]:
        """Return the arguments of a replica's command, without keys: command lines are public."""
        options = flags({name: value for name, value in self.options.items() if name not in (_KEYS, _KEYS_FILE)})
        return [self.model, *options] if self.model else options


def flags(options: Mapping[str, Any]) -> list[str]:
    """Return options by name as words of a command line."""
    words: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append(f"--{name}")
        if isinstance(value, Mapping):
            words += [f"{key}={item}" for key, item in value.items()]
        elif isinstance(value, (list, tuple)):
            words += [str(item) for item in value]
        elif value is not True:
            words.append(str(value))
    return words
