"""``lmdeploy serve gradio``: the chat page, for a running Triton, a server with OpenAI's API, or a model."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from pathlib import Path

from lmdeploy.cli.triton import CommandError, served_model, stop_on_sigterm
from lmdeploy.serve.errors import PortInUseError
from lmdeploy.serve.ports import require_free

_ADDRESS = re.compile(r"[^/\s]+:\d+")  # host:port


def run(args: argparse.Namespace) -> int:
    """Serve the page until SIGINT or SIGTERM; return the exit status."""
    logging.basicConfig(level=args.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop_on_sigterm()
    try:
        require_free(args.server_name, args.server_port, "the chat page (--server-port)")
        if _ADDRESS.fullmatch(args.target) and not Path(args.target).exists():
            _launch(args.target, args, os.environ.get("LMDEPLOY_CONTROL_KEY", ""))
            return 0
        if args.target.startswith(("http://", "https://")):
            _launch(args.target, args)
            return 0
        args.enable_prefix_caching = True  # each turn sends all that was said: only what is new is to cost something
        with served_model(args.target, args) as served:
            import webui.app  # noqa: F401 (takes seconds, in which the model is loaded)

            served.wait_ready()
            _launch(served.server.grpc_address, args, served.server.control_key, served.server.metrics_url)
    except (CommandError, PortInUseError) as error:
        print(f"lmdeploy serve gradio: {error}", file=sys.stderr)
        return 1
    return 0


def _launch(server: str, args: argparse.Namespace, control_key: str = "", figures_url: str = "") -> None:
    from lmdeploy.cli.gateway_settings import api_keys
    from webui.app import launch  # gradio takes seconds to import

    keys = api_keys(args.api_keys)
    launch(
        server,
        args.server_name,
        args.server_port,
        api_keys=keys,
        api_key=args.api_key,
        control_key=control_key,
        figures_url=figures_url,
    )
