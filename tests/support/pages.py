"""The chat page, served in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from tests.support.waiting import eventually_sync


@contextmanager
def running_page(triton_address: str, api_keys: Sequence[str] = ()) -> Iterator[str]:
    """Serve the page for a Triton on a free port; the value is its URL."""
    from webui.app import create_app

    app = create_app(triton_address, api_keys=api_keys)
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="webui")
    thread.start()
    try:
        eventually_sync(lambda: server.started, 30)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the page did not stop"
