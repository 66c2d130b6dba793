"""Real uvicorn servers in threads of this process: the gateway, a proxy, the chat page."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import openai

from openai_gateway.process.connection import DEFAULT_CLIENT_TIMEOUTS, DEFAULT_MAX_CONNECTIONS, ClientTimeouts
from openai_gateway.process.server import Listening, Server
from openai_gateway.process.worker import gateway_server
from openai_gateway.proxy.app import create_proxy
from openai_gateway.proxy.settings import ProxySettings
from openai_gateway.settings import Settings
from tests.support.waiting import eventually_sync


@contextmanager
def _running(server: Any) -> Iterator[str]:
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually_sync(lambda: server.started or not thread.is_alive())
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.should_exit = True
        thread.join(180)
        assert not thread.is_alive(), "the server did not stop"


@contextmanager
def running_gateway(
    settings: Settings,
    port: int = 0,
    timeouts: ClientTimeouts = DEFAULT_CLIENT_TIMEOUTS,
    max_connections: int = DEFAULT_MAX_CONNECTIONS,
) -> Iterator[str]:
    """Serve on `port`, 0 for a free one; the value is the base URL, without ``/v1``."""
    listening = Listening("127.0.0.1", port, timeouts=timeouts, max_connections=max_connections)
    with _running(gateway_server(settings, listening)) as url:
        yield url


def openai_client(url: str, api_key: str = "none") -> openai.OpenAI:
    """Return a client of a server, whose URL is without ``/v1``; it tries once."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0)


@contextmanager
def running_proxy(settings: ProxySettings, port: int = 0) -> Iterator[str]:
    """Serve on `port`, 0 for a free one; the value is the base URL."""
    listening = Listening("127.0.0.1", port)
    with _running(Server(create_proxy(settings), listening, settings.drain_seconds)) as url:
        yield url


@contextmanager
def running_page(
    triton_address: str, api_keys: Sequence[str] = (), timeouts: ClientTimeouts = DEFAULT_CLIENT_TIMEOUTS
) -> Iterator[str]:
    """Serve the chat page for a Triton on a free port; the value is its URL."""
    from webui.app import create_app, server_of

    with _running(server_of(create_app(triton_address, api_keys=api_keys), "127.0.0.1", 0, timeouts)) as url:
        yield f"{url}/"
