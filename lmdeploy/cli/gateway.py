"""``lmdeploy serve gateway``: the OpenAI API of a Triton that somebody else runs."""

from __future__ import annotations

import argparse
import logging
import sys

from lmdeploy.serve.errors import PortInUseError
from lmdeploy.serve.ports import require_free
from openai_gateway.server import GatewayServer
from openai_gateway.settings import Settings


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; return the exit status."""
    logging.basicConfig(level=args.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        require_free(args.server_name, args.server_port, "the OpenAI API (--server-port)")
    except PortInUseError as error:
        print(f"lmdeploy serve gateway: {error}", file=sys.stderr)
        return 1

    def print_url() -> None:
        print(
            f"OpenAI API of Triton at {args.triton_address}: http://{args.server_name}:{args.server_port}/v1",
            flush=True,
        )

    GatewayServer(
        Settings(triton_address=args.triton_address, model_name=args.model_name or None),
        server_name=args.server_name,
        server_port=args.server_port,
        log_level=args.log_level,
        on_ready=print_url,
    ).run()
    return 0
