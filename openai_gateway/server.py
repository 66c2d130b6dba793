"""Run the gateway under uvicorn, in this process."""

from __future__ import annotations

import socket
from collections.abc import Callable

from openai_gateway.app import create_app
from openai_gateway.listening import Listening, Server
from openai_gateway.settings import Settings


class GatewayServer(Server):
    """A server for one gateway; the parameters are those of `Server`."""

    def __init__(self, settings: Settings, listening: Listening, on_ready: Callable[[], None] | None = None) -> None:
        self._app = create_app(settings)
        super().__init__(self._app, listening, settings.drain_seconds, on_ready)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Leave the proxy, stop listening, and answer what is open."""
        await self._app.state.registration.stop()
        await super().shutdown(sockets=sockets)
