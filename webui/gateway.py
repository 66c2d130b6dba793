"""The gateway of a page for a Triton, in the page's process: the page speaks OpenAI's API alone."""

from __future__ import annotations

import secrets
import threading
from dataclasses import replace

from lmdeploy.serve.ports import free_ports
from openai_gateway.process.server import Listening, Server
from openai_gateway.settings import Settings

_HOST = "127.0.0.1"
_MAX_BODY_BYTES = 2**28  # the page has bounds of its own
_NO_TEMPLATE = "qwen3"  # the parser that looks for <think>, where no template says how the model reasons


class PageGateway:
    """A gateway on this machine's loopback, for those who know its key: the page."""

    def __init__(self, settings: Settings) -> None:
        from openai_gateway.app import create_app  # takes a second, which a page of a server by URL does not need

        (port,) = free_ports(1, _HOST)
        self.url, self.key = f"http://{_HOST}:{port}", secrets.token_urlsafe()
        parser = settings.reasoning_parser if settings.engine_dir else _NO_TEMPLATE
        settings = replace(settings, api_keys=(self.key,), max_body_bytes=_MAX_BODY_BYTES, reasoning_parser=parser)
        self._server = Server(create_app(settings), Listening(_HOST, port), drain_seconds=1)
        self._thread = threading.Thread(target=self._server.run, name="gateway", daemon=True)

    def start(self) -> None:
        """Start it; requests until it listens fail."""
        self._thread.start()

    def stop(self) -> None:
        """Stop it."""
        self._server.should_exit = True
        self._thread.join()
