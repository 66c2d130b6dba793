"""``lmdeploy.serve`` and ``lmdeploy.client``."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import weakref
from collections.abc import Mapping
from ssl import SSLContext, create_default_context
from typing import TYPE_CHECKING, Any, Literal

import httpx

from lmdeploy.messages import require_vision_config
from lmdeploy.paths import locate_model
from lmdeploy.serve.child import ChildProcess
from lmdeploy.serve.keys import environment_of, split_keys
from lmdeploy.serve.openai.api_client import APIClient
from lmdeploy.serve.ports import free_ports, reachable_host
from lmdeploy.turbomind.engine_settings import backend_of, engine_config_for, given_settings

if TYPE_CHECKING:
    from lmdeploy.messages import PytorchEngineConfig, TurbomindEngineConfig
    from lmdeploy.model import ChatTemplateConfig

logger = logging.getLogger(__name__)

_POLL = 0.1  # seconds
_GRACE = 40.0
_LISTS = ("allow_origins", "allow_methods", "allow_headers")
_VALUES = ("max_log_len", "proxy_url")
_FLAGS = ("allow_credentials", "disable_fastapi_docs")


class ServeError(RuntimeError):
    """The server ended before it was ready; the text is the end of what it said."""


class ServedAPIClient(APIClient):
    """A client of a server in a child process, which ends with `stop`, with this object, or with this process."""

    def __init__(self, url: str, api_key: str | None, server: ChildProcess) -> None:
        verify: bool | SSLContext = True
        if url.startswith("https"):  # its certificate may be signed by nobody else
            verify = create_default_context(cafile=os.environ["SSL_CERTFILE"])
            verify.check_hostname = False
        super().__init__(url, api_key, verify=verify)
        self.server = server
        self._stop = weakref.finalize(self, server.stop, _GRACE)

    def stop(self) -> None:
        """Stop the server."""
        self.close()
        self._stop()


def serve(
    model_path: str,
    model_name: str | None = None,
    backend: Literal["turbomind", "pytorch"] = "turbomind",
    backend_config: TurbomindEngineConfig | PytorchEngineConfig | None = None,
    chat_template_config: ChatTemplateConfig | None = None,
    server_name: str = "0.0.0.0",
    server_port: int = 23333,
    log_level: str = "ERROR",
    api_keys: list[str] | str | None = None,
    ssl: bool = False,
    **kwargs: Any,
) -> ServedAPIClient:
    """Start ``lmdeploy serve api_server`` in its own process, and return a client of it once it is ready.

    Parameters
    ----------
    model_path
        As for the command.
    model_name
        The name clients use; default: the model directory's.
    backend, backend_config
        How the engine runs the model, as for :func:`lmdeploy.pipeline`.
    chat_template_config
        The chat template; default: the model's own.
    server_name, server_port
        Address to listen on.
    log_level
        One of Python's logging levels.
    api_keys
        Keys, one of which is needed.
    ssl
        Serve HTTPS; ``SSL_KEYFILE`` and ``SSL_CERTFILE`` in the environment name the files.
    kwargs
        Options of the command by name: ``allow_origins``, ``allow_methods``, ``allow_headers``, ``allow_credentials``,
        ``disable_fastapi_docs``, ``max_log_len``, ``proxy_url``; or fields of ``TurbomindEngineConfig``.

    Returns
    -------
    APIClient
        With a ``stop`` method.

    Raises
    ------
    ValueError
        A setting is bad, or not supported.
    TypeError
        There is no such setting.
    ServeError
        The server did not start.
    """
    options = _options({name: kwargs.pop(name) for name in (*_LISTS, *_VALUES, *_FLAGS) if name in kwargs})
    require_vision_config(kwargs.pop("vision_config", None))
    # The default of `backend` is no contradiction to a config.
    config = engine_config_for(backend_config, None if backend == "turbomind" else backend, kwargs)
    keys = split_keys([api_keys] if isinstance(api_keys, str) else api_keys or ())
    command, env = command_of("api_server", model_path, model_name, config, chat_template_config)
    command += ["--server-name", server_name, "--server-port", str(server_port), "--log-level", log_level]
    command += [*(["--ssl"] if ssl else []), *options]
    if keys:
        env |= environment_of({"api-keys": keys})
    server = ChildProcess(command, env=env, log=logger.info)
    url = f"{'https' if ssl else 'http'}://{reachable_host(server_name)}:{server_port}"
    try:
        _wait_ready(server, url)
    except BaseException:
        server.stop(_GRACE)
        raise
    return ServedAPIClient(url, keys[0] if keys else None, server)


def command_of(
    server: str,  # of `lmdeploy serve`
    model_path: str,
    model_name: str | None,
    config: TurbomindEngineConfig | PytorchEngineConfig,
    chat_template_config: ChatTemplateConfig | None,
) -> tuple[list[str], dict[str, str]]:
    """Return the command that serves a model with its own tritonserver on free ports, and its environment."""
    if config.revision or config.download_dir:
        model_path = str(locate_model(model_path, config.revision, config.download_dir))
    command = [sys.executable, "-m", "lmdeploy", "serve", server, model_path]
    for name, port in zip(("http", "grpc", "metrics"), free_ports(3), strict=True):
        command += [f"--triton-{name}-port", str(port)]
    command += ["--model-name", model_name] if model_name else []
    command += ["--backend", "pytorch"] if backend_of(config) == "pytorch" else []
    command += ["--chat-template", chat_template_config.to_json()] if chat_template_config else []
    return command, {**os.environ, "LMDEPLOY_ENGINE_CONFIG": json.dumps(given_settings(config))}


def client(api_server_url: str = "http://0.0.0.0:23333", api_key: str | None = None, **kwargs: Any) -> APIClient:
    """Return a client of a running API server.

    Parameters
    ----------
    api_server_url
        ``http://host:port``.
    api_key
        A key of the server, if it has any.
    kwargs
        Ignored.
    """
    return APIClient(api_server_url, api_key, **kwargs)


def _options(given: Mapping[str, Any]) -> list[str]:
    """Return options of the command, from those of ``serve`` that have its names."""
    options = []
    for name, value in given.items():
        flag = "--" + name.replace("_", "-")
        if name in _FLAGS:
            options += [flag] if value else []
        elif value is not None:
            options += [flag, *([value] if isinstance(value, str) or name in _VALUES else value)]
    return [str(option) for option in options]


def _wait_ready(server: ChildProcess, url: str) -> None:
    while server.returncode is None:
        try:
            # Whoever can connect to our own child need not doubt its certificate.
            if httpx.get(f"{url}/health", timeout=2, verify=False, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(_POLL)
    raise ServeError("the API server ended:\n" + "\n".join(server.tail()[-20:]))
