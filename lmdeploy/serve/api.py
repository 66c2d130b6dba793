"""``lmdeploy.serve`` and ``lmdeploy.client``."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
import tempfile
import time
import weakref
from pathlib import Path
from ssl import SSLContext, create_default_context
from typing import TYPE_CHECKING, Any, Literal

import httpx

from lmdeploy.serve.child import ChildProcess
from lmdeploy.serve.openai.api_client import APIClient
from lmdeploy.serve.ports import free_ports, reachable_host

if TYPE_CHECKING:
    from lmdeploy.messages import PytorchEngineConfig, TurbomindEngineConfig
    from lmdeploy.model import ChatTemplateConfig

logger = logging.getLogger(__name__)

_POLL = 0.1  # seconds
_GRACE = 40.0


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
    """Start ``lmdeploy serve api_server`` in a process of its own, and return a client of it once it is ready.

    Parameters
    ----------
    model_path
        As for the command.
    model_name
        The name clients use; default: the model directory's.
    backend
        ``turbomind``.
    backend_config
        How the engine runs the model.
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
        Ignored.

    Returns
    -------
    APIClient
        With a ``stop`` method.

    Raises
    ------
    ValueError
        ``backend`` is another one.
    ServeError
        The server did not start.
    """
    if backend != "turbomind":
        raise ValueError(f"backend must be 'turbomind', got {backend!r}")
    keys = [api_keys] if isinstance(api_keys, str) else list(api_keys or ())
    command = [sys.executable, "-m", "lmdeploy", "serve", "api_server", model_path]
    command += ["--server-name", server_name, "--server-port", str(server_port), "--log-level", log_level]
    for name, port in zip(("http", "grpc", "metrics"), free_ports(3), strict=True):
        command += [f"--triton-{name}-port", str(port)]
    command += ["--model-name", model_name] if model_name else []
    command += ["--ssl"] if ssl else []
    env = dict(os.environ)
    if backend_config is not None:
        env["LMDEPLOY_ENGINE_CONFIG"] = json.dumps(_given(backend_config))
    with tempfile.TemporaryDirectory(prefix="lmdeploy-template-") as folder:
        if chat_template_config is not None:
            template = Path(folder) / "template.json"
            template.write_text(json.dumps(_given(chat_template_config)), encoding="utf-8")
            command += ["--chat-template", str(template)]
        command += ["--api-keys", *keys] if keys else []
        server = ChildProcess(command, env=env, log=logger.info)
        scheme = "https" if ssl else "http"
        url = f"{scheme}://{reachable_host(server_name)}:{server_port}"
        try:
            _wait_ready(server, url)
        except BaseException:
            server.stop(_GRACE)
            raise
    return ServedAPIClient(url, keys[0] if keys else None, server)


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


def _given(config: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from its defaults."""
    fields = {field.name: (field.default, getattr(config, field.name)) for field in dataclasses.fields(config)}
    return {name: value for name, (default, value) in fields.items() if value != default}


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
