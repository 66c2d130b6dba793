"""``lmdeploy serve api_server``: tritonserver, the gateway and, on demand, the chat page as one."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lmdeploy.cli.gateway_settings import api_keys, base_url, check_qos, gateway_settings, listening
from lmdeploy.cli.triton import CommandError, ServedModel, served_model, stop_on_sigterm
from lmdeploy.serve.child import ChildProcess
from lmdeploy.serve.errors import PortInUseError
from lmdeploy.serve.ports import reachable_host, require_free
from openai_gateway.process.tls import TlsError
from openai_gateway.process.workers import WorkerError, serve_until_stopped
from openai_gateway.qos import QosConfigError
from openai_gateway.settings import Settings

logger = logging.getLogger(__name__)

_WEBUI_START = 60.0  # seconds


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; return the exit status."""
    logging.basicConfig(level=args.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop_on_sigterm()
    try:
        where = listening(args)
        check_qos(args)
        require_free(args.server_name, args.server_port, "the OpenAI API (--server-port)")
        if args.webui:
            require_free(args.server_name, args.webui_port, "the chat page (--webui-port)")
        with served_model(args.model, args) as served, _webui(args, served):
            base = Settings(
                triton_address=served.server.grpc_address,
                triton_metrics_url=served.server.metrics_url,
                model_name=served.name,
                engine_dir=served.engine_dir,
            )
            serve_until_stopped(
                gateway_settings(args, base),
                where,
                workers=args.workers,
                on_ready=lambda: _print_urls(args, served),
            )
    except (CommandError, PortInUseError, TlsError, QosConfigError, WorkerError) as error:
        print(f"lmdeploy serve api_server: {error}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def _webui(args: argparse.Namespace, served: ServedModel) -> Iterator[None]:
    """Run the chat page in a process of its own, if it is wanted."""
    if not args.webui:
        yield
        return
    where = ["--server-name", args.server_name, "--server-port", str(args.webui_port)]
    command = [sys.executable, "-m", "lmdeploy", "serve", "gradio", served.server.grpc_address, *where]
    command += ["--api-keys", *keys] if (keys := api_keys(args.api_keys)) else []
    page = ChildProcess(command, env=os.environ, log=logging.getLogger("webui").info)
    try:
        deadline = time.monotonic() + _WEBUI_START
        while not _accepts(reachable_host(args.server_name), args.webui_port):
            if page.returncode is not None or time.monotonic() > deadline:
                raise CommandError("the chat page did not start:\n" + "\n".join(page.tail()[-20:]))
            time.sleep(0.1)
        yield
    finally:
        page.stop(grace=5)


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def _print_urls(args: argparse.Namespace, served: ServedModel) -> None:
    host, server = reachable_host(args.server_name), served.server
    lines = [
        f"serving {served.name}",
        f"  OpenAI API  {base_url(args)}/v1   (documentation: {base_url(args)}/)",
    ]
    if args.webui:
        lines.append(f"  chat page   http://{host}:{args.webui_port}/")
    lines += [
        f"  Triton      gRPC {server.grpc_address}, HTTP {server.http_address}, metrics {server.metrics_url}",
        f"  its log     {served.log_file}",
        "Ctrl-C stops everything.",
    ]
    print("\n".join(lines), flush=True)
