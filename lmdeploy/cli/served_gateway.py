"""The gateway of ``lmdeploy serve api_server``. Importing it takes a second, in which tritonserver loads the model."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import openai_gateway.app  # noqa: F401 (so that it is there when the model is)
from lmdeploy.cli.gateway_settings import base_url, browsers_line, gateway_settings, listening
from lmdeploy.cli.triton import ServedModel
from openai_gateway.process.workers import serve_until_stopped
from openai_gateway.settings import Settings

__all__ = ["base_url", "browsers_line", "serve"]


def serve(args: argparse.Namespace, served: ServedModel, on_ready: Callable[[], None]) -> None:
    """Serve a model once it is loaded, until stopped; raise `WorkerError` if the gateway cannot start."""
    base = Settings(
        triton_address=served.server.grpc_address,
        triton_metrics_url=served.server.metrics_url,
        model_name=None if served.models_dir else served.name,
        engine_dir=served.engine_dir,
        chat_template=served.chat_template,
        models_dir=served.models_dir,
        repository_key=served.server.repository_key,
        control_key=served.server.control_key,
    )
    serve_until_stopped(
        gateway_settings(args, base),
        listening(args),
        workers=args.workers,
        wait_for_model=served.wait_ready,
        on_ready=on_ready,
    )
