"""``lmdeploy serve proxy``: requests spread over several API servers."""

from __future__ import annotations

import argparse
from pathlib import Path

from lmdeploy.cli.gateway_settings import base_url, listening
from lmdeploy.cli.triton import stop_on_sigterm
from lmdeploy.logs import configure
from lmdeploy.paths import cache_root
from lmdeploy.serve.heap import pause_collection, trim_heap
from lmdeploy.serve.ports import require_free
from openai_gateway.process.server import Server
from openai_gateway.proxy.app import create_proxy
from openai_gateway.proxy.settings import ProxySettings, heartbeat_seconds


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; return the exit status."""
    pause_collection()
    configure(args.log_level, args.log_format)
    stop_on_sigterm()
    trim_heap()
    default_state = cache_root() / "proxy" / f"nodes-{args.server_port}.json"
    settings = ProxySettings(
        strategy=args.strategy,
        state_file=Path(args.state_file) if args.state_file else default_state,
        api_keys=tuple(args.api_keys),
        admin_keys=tuple(args.admin_keys),
        node_key=args.node_key,
        allow_private_nodes=args.allow_private_nodes,
        check_seconds=heartbeat_seconds(),
    )
    where = listening(args)
    require_free(args.server_name, args.server_port, "the proxy (--server-port)")
    ready = f"proxy: {base_url(args)}  (documentation: {base_url(args)}/)"
    Server(create_proxy(settings), where, settings.drain_seconds, lambda: print(ready, flush=True)).run()
    return 0
