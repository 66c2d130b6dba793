"""uvicorn server of an application, in this process."""

from __future__ import annotations

import resource
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from lmdeploy.serve.heap import resume_collection
from lmdeploy.serve.quiet_server import QuietServer
from openai_gateway.process.connection import (
    DEFAULT_CLIENT_TIMEOUTS,
    DEFAULT_MAX_CONNECTIONS,
    ClientTimeouts,
    connection_class,
)
from openai_gateway.process.tls import TlsFiles


@dataclass(frozen=True)
class Listening:
    """Where and how a server listens."""

    # The address; port 0 takes a free one
    server_name: str
    server_port: int
    log_level: str = "WARNING"  # one of Python's logging levels
    tls: TlsFiles | None = None  # serve HTTPS
    timeouts: ClientTimeouts = DEFAULT_CLIENT_TIMEOUTS  # how long clients may take
    log_format: str = "text"  # as for ``lmdeploy.logs.configure``
    max_connections: int = DEFAULT_MAX_CONNECTIONS  # open at a time


class Server(QuietServer):
    """A uvicorn server for one application. ``run`` blocks until SIGINT, SIGTERM or ``should_exit``."""

    def __init__(
        self,
        app: ASGIApp,  # what to serve. It writes its own access log
        listening: Listening,
        drain_seconds: float,  # what open requests get when the server is asked to stop
        on_ready: Callable[[], None] | None = None,  # called once when connections are accepted
        # Called when the server is asked to stop, before it stops listening
        on_stopping: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        tls = listening.tls
        config = uvicorn.Config(
            app,
            host=listening.server_name,
            port=listening.server_port,
            log_level=listening.log_level.lower(),
            log_config=uvicorn.config.LOGGING_CONFIG if listening.log_format == "text" else None,
            access_log=False,
            http=connection_class(listening.timeouts, listening.max_connections),
            ws="none",  # an upgraded connection would have no deadlines
            timeout_keep_alive=listening.timeouts.idle,  # type: ignore[arg-type]  # any number of seconds
            timeout_graceful_shutdown=max(1, round(drain_seconds)),
            ssl_keyfile=tls.key if tls else None,
            ssl_certfile=tls.certificate if tls else None,
        )
        super().__init__(config)
        self._on_ready = on_ready
        self._on_stopping = on_stopping

    @property
    def port(self) -> int:
        """The port in use, once started."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then report `on_ready`."""
        _use_all_descriptors()
        resume_collection()
        await super().startup(sockets=sockets)
        if self.started and self._on_ready is not None:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Report `on_stopping`, stop listening, and answer what is open."""
        if self._on_stopping is not None:
            await self._on_stopping()
        await super().shutdown(sockets=sockets)


def _use_all_descriptors() -> None:
    """Raise the limit of open files, one a connection, to what we may have: the usual one is 1024, for old programs."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
