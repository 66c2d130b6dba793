"""Run the gateway under uvicorn, in this process."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from openai_gateway.app import create_app
from openai_gateway.settings import DEFAULT_PORT, Settings
from openai_gateway.tls import TlsFiles


class GatewayServer(uvicorn.Server):
    """A uvicorn server for one gateway. ``run`` blocks until SIGINT, SIGTERM or ``should_exit``.

    Requests that are open then are answered, within the settings' ``drain_seconds``.

    Parameters
    ----------
    settings : Settings
        Of the gateway.
    server_name, server_port
        Address to listen on; port 0 takes a free one.
    log_level : str
        One of Python's logging levels.
    tls : TlsFiles, optional
        Serve HTTPS.
    on_ready : callable, optional
        Called once when connections are accepted.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        server_name: str = "0.0.0.0",
        server_port: int = DEFAULT_PORT,
        log_level: str = "WARNING",
        tls: TlsFiles | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        self._app = create_app(settings)
        config = uvicorn.Config(
            self._app,
            host=server_name,
            port=server_port,
            log_level=log_level.lower(),
            access_log=False,  # openai_gateway.access writes one
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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Leave the proxy, stop listening, and answer what is open."""
        await self._app.state.registration.stop()
        await super().shutdown(sockets=sockets)
