"""A real uvicorn server with the gateway, in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from openai_gateway.process.connection import DEFAULT_CLIENT_TIMEOUTS, DEFAULT_MAX_CONNECTIONS, ClientTimeouts
from openai_gateway.process.server import Listening
from openai_gateway.process.worker import gateway_server
from openai_gateway.settings import Settings


@contextmanager
def running_gateway(
    settings: Settings,
    port: int = 0,
    timeouts: ClientTimeouts = DEFAULT_CLIENT_TIMEOUTS,
    max_connections: int = DEFAULT_MAX_CONNECTIONS,
) -> Iterator[str]:
    """Serve on `port`, 0 for a free one; the value is the base URL, without ``/v1``."""
    ready = threading.Event()
    server = gateway_server(
        settings, Listening("127.0.0.1", port, timeouts=timeouts, max_connections=max_connections), on_ready=ready.set
    )
    thread = threading.Thread(target=server.run, name="gateway")
    thread.start()
    try:
        assert ready.wait(180), "the gateway did not start"
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.should_exit = True
        thread.join(180)
        assert not thread.is_alive(), "the gateway did not stop"
