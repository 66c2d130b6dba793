"""The chat page, served in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from openai_gateway.process.connection import DEFAULT_CLIENT_TIMEOUTS, ClientTimeouts
from tests.support.waiting import eventually_sync


@contextmanager
def running_page(
    triton_address: str, api_keys: Sequence[str] = (), timeouts: ClientTimeouts = DEFAULT_CLIENT_TIMEOUTS
) -> Iterator[str]:
    """Serve the page for a Triton on a free port; the value is its URL."""
    from webui.app import create_app, server_of

    server = server_of(create_app(triton_address, api_keys=api_keys), "127.0.0.1", 0, timeouts)
    thread = threading.Thread(target=server.run, name="webui")
    thread.start()
    try:
        eventually_sync(lambda: server.started)
        yield f"http://127.0.0.1:{server.port}/"
    finally:
        server.should_exit = True
        thread.join(180)
        assert not thread.is_alive(), "the page did not stop"
