"""A real proxy, in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from openai_gateway.process.server import Listening, Server
from openai_gateway.proxy.app import create_proxy
from openai_gateway.proxy.settings import ProxySettings


@contextmanager
def running_proxy(settings: ProxySettings, port: int = 0) -> Iterator[str]:
    """Serve on `port`, 0 for a free one; the value is the base URL."""
    ready = threading.Event()
    server = Server(create_proxy(settings), Listening("127.0.0.1", port), settings.drain_seconds, on_ready=ready.set)
    thread = threading.Thread(target=server.run, name="proxy")
    thread.start()
    try:
        assert ready.wait(180), "the proxy did not start"
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.should_exit = True
        thread.join(180)
        assert not thread.is_alive(), "the proxy did not stop"
