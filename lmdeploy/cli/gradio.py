"""``lmdeploy serve gradio``: the chat page, for a running Triton, a server with OpenAI's API, or a model."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from lmdeploy.cli.triton import served_model, stop_on_sigterm
from lmdeploy.logs import configure
from lmdeploy.serve.heap import pause_collection, trim_heap
from lmdeploy.serve.ports import require_free
from openai_gateway.settings import Settings

_ADDRESS = re.compile(r"[^/\s]+:\d+")  # host:port


def run(args: argparse.Namespace) -> int:
    """Serve the page until SIGINT or SIGTERM; return the exit status."""
    pause_collection()
    configure(args.log_level, args.log_format)
    stop_on_sigterm()
    trim_heap()
    require_free(args.server_name, args.server_port, "the chat page (--server-port)")
    if _ADDRESS.fullmatch(args.target) and not Path(args.target).exists():
        control_key = os.environ.get("LMDEPLOY_CONTROL_KEY", "")
        _launch(args.target, args, Settings(control_key=control_key, generation_config=args.generation_config))
        return 0
    if args.target.startswith(("http://", "https://")):
        _launch(args.target, args, Settings())
        return 0
    with served_model(args.target, args) as served:
        import webui.app  # noqa: F401 (takes seconds, in which the model is loaded)

        served.wait_ready()
        settings = Settings(
            control_key=served.server.control_key,
            engine_dir=served.engine_dir,
            chat_template=served.chat_template,
            generation_config=args.generation_config,
        )
        _launch(served.server.grpc_address, args, settings)
    return 0


def _launch(server: str, args: argparse.Namespace, settings: Settings) -> None:
    from webui.app import launch  # gradio takes seconds to import

    launch(
        server,
        args.server_name,
        args.server_port,
        api_keys=args.api_keys,
        api_key=args.api_key,
        settings=settings,
    )
