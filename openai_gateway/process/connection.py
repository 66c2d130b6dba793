"""One connection to a client: uvicorn's own, with a deadline for everything a client does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

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


@dataclass(frozen=True)
class ClientTimeouts:
    """How long a client may take, in seconds.

    Attributes
    ----------
    head : float
        From opening a connection, or from the first byte of a further request, to the end of the request's head.
    body : float
        From there to the end of its body.
    write : float
        To take what has been written for it, once so much is waiting that no more is written.
    idle : float
        To begin a further request. A request that is sent at the moment we close is lost to its client, which cannot
        know whether it ran: so longer than clients and proxies keep what they do not use (5 to 60).
    """

    head: float = DEFAULT_HEAD_SECONDS
    body: float = DEFAULT_BODY_SECONDS
    write: float = DEFAULT_WRITE_SECONDS
    idle: float = DEFAULT_IDLE_SECONDS


DEFAULT_CLIENT_TIMEOUTS = ClientTimeouts()


def connection_class(timeouts: ClientTimeouts) -> type[HttpToolsProtocol]:
    """Return the class of connections with these deadlines."""
    return type("Connection", (_Connection,), {"timeouts": timeouts})


class _Connection(HttpToolsProtocol):
    timeouts: ClassVar[ClientTimeouts]
    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None
    _in_head = False  # of a request that has begun
    _head_bytes = 0
    _running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._read_by(self.timeouts.head)

    def connection_lost(self, exc: Exception | None) -> None:
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
            self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD:
            self._refuse(ApiError(431, f"The request's head is longer than {MAX_HEAD} bytes."))
        elif self._reading is None and (self._in_head or not self._is_answering):  # a further request, or blanks
            self._read_by(self.timeouts.head)

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._read_by(self.timeouts.body)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._read_by(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._let_go()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._let_go()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_by(self.timeouts.write)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._write_by(None)

    def _let_go(self) -> None:
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
            self._refuse(ApiError(408, "The request did not come in time."))

    def _refuse(self, refusal: ApiError) -> None:
        """Close the connection; say why, if a request has begun and no other response has."""
        is_generating = self._is_answering
        if not is_generating if self._in_head else is_generating and not self.cycle.response_started:
            body = refusal.body()
            head = f"HTTP/1.1 {refusal.status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()
        self._let_go()
