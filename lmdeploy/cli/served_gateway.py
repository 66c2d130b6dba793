"""The gateway of ``lmdeploy serve api_server``. Importing it takes a second, in which tritonserver loads the model."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import openai_gateway.app  # noqa: F401 (so that it is there when the model is)
from lmdeploy.cli.gateway_settings import base_url, browsers_line, check_qos, gateway_settings, listening
from lmdeploy.cli.triton import CommandError, ServedModel
from openai_gateway.process.tls import TlsError
from openai_gateway.process.workers import WorkerError, serve_until_stopped
from openai_gateway.qos import QosConfigError
from openai_gateway.settings import Settings

__all__ = ["base_url", "browsers_line", "check_files", "serve"]


def check_files(args: argparse.Namespace) -> None:
    """Read the certificate and the policy file, if they are asked for; raise `CommandError` if one is unusable."""
    with _explained():
        listening(args)
        check_qos(args)


def serve(args: argparse.Namespace, served: ServedModel, on_ready: Callable[[], None]) -> None:
    """Serve a model once it is loaded, until stopped.

    Raises `CommandError` if the gateway cannot start.
    """
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
    with _explained():
        serve_until_stopped(
            gateway_settings(args, base),
            listening(args),
            workers=args.workers,
            wait_for_model=served.wait_ready,
            on_ready=on_ready,
        )


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (TlsError, QosConfigError, WorkerError) as error:
        raise CommandError(str(error)) from None
