"""Run a proxy under uvicorn."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from openai_gateway.proxy.app import create_proxy
from openai_gateway.proxy.settings import ProxySettings
from openai_gateway.tls import TlsFiles


class ProxyServer(uvicorn.Server):
    """A uvicorn server for one proxy; as `openai_gateway.server.GatewayServer`."""

    def __init__(
        self,
        settings: ProxySettings,
        *,
        server_name: str,
        server_port: int,
        log_level: str = "WARNING",
        tls: TlsFiles | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        config = uvicorn.Config(
            create_proxy(settings),
            host=server_name,
            port=server_port,
            log_level=log_level.lower(),
            access_log=False,
            timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
            ssl_keyfile=tls.key if tls else None,
            ssl_certfile=tls.certificate if tls else None,
        )
        super().__init__(config)
        self._on_ready = on_ready

    @property
    def port(self) -> int:
        """The port in use, once started."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then tell `on_ready`."""
        await super().startup(sockets=sockets)
        if self.started and self._on_ready is not None:
            self._on_ready()
