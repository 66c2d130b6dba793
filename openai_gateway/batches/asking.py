"""A request, asked of the application as a client's request is, without a socket."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message

from openai_gateway.middleware.own_requests import OWN


@dataclass(frozen=True, slots=True)
class BatchResponse:
    """A response of the application: status, ``x-request-id``, and a body of JSON."""

    status: int
    request_id: str
    body: bytes


async def ask(app: ASGIApp, url: str, body: bytes, key: str | None) -> BatchResponse:
    """Send one body to a path; being cancelled cancels the request in the engine.

    Parameters
    ----------
    app
        With its middleware.
    key
        The API key that it comes with; it is not looked at again. None: there are none.
    """
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope: dict[str, Any] = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST"}
    scope |= {"path": url, "raw_path": url.encode(), "query_string": b"", "root_path": "", "headers": headers}
    scope |= {"scheme": "http", "server": ("batch", 80), "client": ("batch", 0), "state": {}}
    scope |= {OWN: True, "lmdeploy.key": key}
    pending = [body]
    status, request_id, received = 0, "", bytearray()

    async def receive() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        await asyncio.Event().wait()  # nobody hangs up
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal status, request_id
        if message["type"] == "http.response.start":
            status = message["status"]
            request_id = Headers(raw=message["headers"]).get("x-request-id", "")
        received.extend(message.get("body", b""))

    try:
        await app(scope, receive, send)
    except Exception:
        if not received:  # else it is reported, and raised again for the server's log
            raise
    return BatchResponse(status, request_id, bytes(received))
