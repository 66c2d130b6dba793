"""``lmdeploy serve gateway``: the OpenAI API of a Triton that runs already."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lmdeploy.cli.gateway_settings import base_url, browsers_line, check_qos, gateway_settings, listening
from lmdeploy.cli.triton import stop_on_sigterm
from lmdeploy.logs import configure
from lmdeploy.serve.heap import pause_collection
from lmdeploy.serve.ports import require_free
from openai_gateway.process.workers import serve_until_stopped
from openai_gateway.settings import Settings


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; return the exit status."""
    pause_collection()
    configure(args.log_level, args.log_format)
    stop_on_sigterm()
    where = listening(args)
    check_qos(args)
    require_free(args.server_name, args.server_port, "the OpenAI API (--server-port)")
    base = Settings(
        control_key=os.environ.get("LMDEPLOY_CONTROL_KEY", ""),
        triton_address=args.triton_address,
        triton_metrics_url=args.triton_metrics_url,
        model_name=args.model_name or None,
        engine_dir=Path(args.engine_dir) if args.engine_dir else None,
    )
    serve_until_stopped(
        gateway_settings(args, base),
        where,
        workers=args.workers,
        on_ready=lambda: print(
            f"OpenAI API of Triton at {args.triton_address}: {base_url(args)}/v1\n{browsers_line(args)}", flush=True
        ),
    )
    return 0
