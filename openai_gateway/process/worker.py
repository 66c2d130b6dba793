"""Gateway worker process: the only one, or one of several that share a port, which `workers.py` starts."""

from __future__ import annotations

import os
import pickle
import socket
import sys
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass

from lmdeploy.logs import configure
from lmdeploy.serve.heap import pause_collection, trim_heap
from openai_gateway.app import create_app
from openai_gateway.process.server import Listening, Server
from openai_gateway.settings import Settings

ENVIRONMENT = "LMDEPLOY_GATEWAY_WORKER"  # a pickled `Assignment`, as base64
READY = "gateway worker is ready"


@dataclass(frozen=True)
class Assignment:
    """A worker's application and address."""

    settings: Settings
    listening: Listening


def gateway_server(settings: Settings, listening: Listening, on_ready: Callable[[], None] | None = None) -> Server:
    """Return a server for one gateway, which leaves its proxy before it stops listening."""
    app = create_app(settings)
    return Server(app, listening, settings.drain_seconds, on_ready, app.state.registration.stop)


def shared_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket; the kernel spreads connections over all that share its port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.bind((host, port))
    listening.set_inheritable(False)
    return listening


def main() -> None:
    """Serve until asked to stop."""
    trim_heap()
    pause_collection()
    # The environment is our parent's, who wrote it a moment ago.
    given: Assignment = pickle.loads(b64decode(os.environ.pop(ENVIRONMENT)))
    listening = given.listening
    configure(listening.log_level, listening.log_format)
    server = gateway_server(given.settings, listening, on_ready=lambda: print(READY, flush=True))
    server.run(sockets=[shared_socket(listening.server_name, listening.server_port)])
    sys.exit(0)


if __name__ == "__main__":
    main()
