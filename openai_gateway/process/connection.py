"""HTTP connection of a client: uvicorn's own, with a deadline for everything a client does, which declines upgrades."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from openai_gateway.errors import ApiError
from openai_gateway.settings import (
    DEFAULT_BODY_SECONDS,
    DEFAULT_HEAD_SECONDS,
    DEFAULT_IDLE_SECONDS,
    DEFAULT_WRITE_SECONDS,
)

MAX_HEAD = 64 * 1024  # bytes; one read of the socket may come on top
MAX_HEADERS = 256  # of a head: each takes 150 bytes as objects of Python, and four on the wire
MAX_UNFINISHED_HEADS = 8 * 2**20  # bytes, of all connections: a head that comes in one piece is never unfinished
DEFAULT_MAX_CONNECTIONS = 8192


@dataclass(frozen=True)
class ClientTimeouts:
    """How long a client may take, in seconds."""

    # From opening a connection, or from the first byte of a further request, to the end of the request's head
    head: float = DEFAULT_HEAD_SECONDS
    body: float = DEFAULT_BODY_SECONDS  # from there to the end of its body
    # To take what has been written for it, once so much is waiting that no more is written
    write: float = DEFAULT_WRITE_SECONDS
    # To begin a further request. A request that is sent at the moment we close is lost to its client, which cannot know
    # whether it ran: so longer than clients and proxies keep what they do not use (5 to 60)
    idle: float = DEFAULT_IDLE_SECONDS


DEFAULT_CLIENT_TIMEOUTS = ClientTimeouts()


def connection_class(
    timeouts: ClientTimeouts, max_connections: int = DEFAULT_MAX_CONNECTIONS
) -> type[HttpToolsProtocol]:
    """Return the class of one server's connections, with these deadlines.

    Over `max_connections`, a new connection takes the place of the one that has been without a request for longest; if
    all have requests, it is closed.
    """
    options = {"timeouts": timeouts, "max_connections": max_connections, "idle": {}, "unfinished_heads": [0]}
    return type("Connection", (_Connection,), options)


class _Parser(httptools.HttpRequestParser):
    """A parser that declines offered upgrades: it reads the head again without the offer (RFC 9110, section 7.8).

    The plain parser stops at the end of such a head, and a request of Java's ``HttpClient``, which offers HTTP/2 with
    every POST, would lose its body.
    """

    def __init__(self, connection: _Connection) -> None:
        super().__init__(connection)
        self._connection = connection

    @property
    def is_offered_an_upgrade(self) -> bool:
        return self.should_upgrade() and self.get_method() != b"CONNECT"

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]  # what transports pass
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if not self.is_offered_an_upgrade:
                raise
            self.feed_data(self._connection.head_without_upgrade() + data[offer.args[0] :])


def _until_closed(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """Return an application whose responses of unknown length end with the connection: HTTP/1.0 has no chunks."""

    async def framed(scope: Any, receive: Any, send: Any) -> None:
        async def send_plainly(message: Any) -> None:
            if message["type"] == "http.response.start":
                if not any(name.lower() == b"content-length" for name, _ in message["headers"]):
                    cycle.chunked_encoding = False
            elif cycle.chunked_encoding is False and not cycle.expected_content_length:
                cycle.expected_content_length = len(message["body"])  # what uvicorn checks
            await send(message)

        await app(scope, receive, send_plainly)

    return framed


class _Connection(HttpToolsProtocol):
    timeouts: ClassVar[ClientTimeouts]
    max_connections: ClassVar[int]
    idle: ClassVar[dict[_Connection, None]]  # connections without a request, the longest first
    unfinished_heads: ClassVar[list[int]]  # their bytes, of all connections
    parser: _Parser
    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None
    _in_head = False  # of a request that has begun
    _head_bytes = 0
    _running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.parser = _Parser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self._read_by(self.timeouts.head)
        self.idle[self] = None
        if len(self.connections) > self.max_connections:
            oldest = next(iter(self.idle))  # this one, if all others have requests
            del self.idle[oldest]
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.idle.pop(self, None)
        self._count_head(-self._head_bytes)
        self._read_by(None)
        self._write_by(None)
        # Of pipelined requests, uvicorn marks only the last as disconnected; an earlier one may still be answered.
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            self._count_head(len(data))
        if self._head_bytes > MAX_HEAD:
            self._reject(ApiError(431, f"The request's head is longer than {MAX_HEAD} bytes."))
        elif self._in_head and self.unfinished_heads[0] > MAX_UNFINISHED_HEADS:
            self._reject(ApiError(503, "Too many requests are being sent slowly."))
        elif self._reading is None and (self._in_head or not self._is_answering):  # a further request, or blanks
            self._read_by(self.timeouts.head)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._reject(ApiError(431, f"The request's head has more than {MAX_HEADERS} headers."))
            raise ValueError("too many headers")  # ends the parser

    def send_400_response(self, msg: str) -> None:
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def on_headers_complete(self) -> None:
        if self.parser.is_offered_an_upgrade:
            return
        self._in_head = False
        if self.url.startswith(b"//"):  # a path, not a host and a path
            self.url = b"http://-" + self.url
        self._count_head(-self._head_bytes)
        self.idle.pop(self, None)
        self._read_by(self.timeouts.body)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self.parser.is_offered_an_upgrade:
            return
        self._read_by(None)
        super().on_message_complete()

    def head_without_upgrade(self) -> bytes:
        """Return the head of the request that was read last, without its offer of another protocol."""
        line = b" ".join((self.parser.get_method(), self.url, b"HTTP/" + self.parser.get_http_version().encode()))
        headers = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join((line, *headers, b"", b""))

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_answering:
            self.idle[self] = None
        self._release()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        if cycle.scope["http_version"] == "1.0":
            app = _until_closed(cycle, app)
        super()._start_asgi_task(cycle, app)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._release()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_by(self.timeouts.write)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._write_by(None)

    def _count_head(self, added: int) -> None:
        self._head_bytes += added
        self.unfinished_heads[0] += added

    def _release(self) -> None:
        """See to it that a connection that is closed ends, whether or not its client takes the rest of the response."""
        if self.transport.is_closing() and self._writing is None:
            self._write_by(self.timeouts.write)

    def _read_by(self, seconds: float | None) -> None:
        self._reading = self._again(self._reading, seconds, self._is_late)

    def _write_by(self, seconds: float | None) -> None:
        self._writing = self._again(self._writing, seconds, self.transport.abort)

    def _again(
        self, running: asyncio.TimerHandle | None, seconds: float | None, then: Callable[[], None]
    ) -> asyncio.TimerHandle | None:
        if running is not None:
            running.cancel()
        return None if seconds is None else self.loop.call_later(seconds, then)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _is_late(self) -> None:
        if self.flow.read_paused or (self._in_head and self._is_answering):
            self._read_by(self.timeouts.body)  # we do not read now, or there is a response to finish first
        else:
            self._reject(ApiError(408, "The request did not come in time."))

    def _reject(self, rejection: ApiError) -> None:
        """Close the connection; say why, if a request has begun and no other response has."""
        is_generating = self._is_answering
        if not is_generating if self._in_head else is_generating and not self.cycle.response_started:
            body = rejection.body()
            head = f"HTTP/1.1 {rejection.status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()
        self._release()
