"""Chat page of a model as a function, for hosted demos."""

from __future__ import annotations

import subprocess

from lmdeploy.messages import PytorchEngineConfig, TurbomindEngineConfig
from lmdeploy.model import ChatTemplateConfig
from lmdeploy.serve.api import command_of
from lmdeploy.turbomind.engine_settings import engine_config_for

_HOSTED_DEMO = "huggingface-space"
_HOSTED_PORT = 7860  # where such a place looks for its app


def run_local(
    model_path: str,
    model_name: str | None = None,
    backend: str = "turbomind",
    backend_config: TurbomindEngineConfig | PytorchEngineConfig | None = None,
    chat_template_config: ChatTemplateConfig | None = None,
    server_name: str = "0.0.0.0",
    server_port: int = 6006,
) -> int:
    """Serve a chat page for a model, with its own tritonserver, until it is stopped.

    Parameters
    ----------
    model_path
        As for ``lmdeploy serve gradio``.
    model_name
        Title of the page; default: the model directory's name.
    backend
        ``turbomind``.
    backend_config
        How the engine runs the model.
    chat_template_config
        The chat template; default: the model's own.
    server_name
        Address to listen on. ``huggingface-space``: every address, on port 7860, as a hosted demo is expected to.
    server_port
        Port of the page.

    Returns
    -------
    int
        The exit status of the command.

    Raises
    ------
    ValueError
        A setting is bad, or not supported.
    """
    config = engine_config_for(backend_config, None if backend == "turbomind" else backend, {})
    if server_name == _HOSTED_DEMO:
        server_name, server_port = "0.0.0.0", _HOSTED_PORT
    command, env = command_of("gradio", model_path, model_name, config, chat_template_config)
    command += ["--server-name", server_name, "--server-port", str(server_port)]
    return subprocess.run(command, env=env, check=False).returncode
