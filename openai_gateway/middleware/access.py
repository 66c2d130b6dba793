"""Access middleware: an id, the limit of requests at a time, a log line, and the gateway's own metrics."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lmdeploy.logs import REQUEST_ID
from openai_gateway.errors import ApiError, one_line
from openai_gateway.metrics.requests import RequestMetrics
from openai_gateway.middleware.internal_requests import OpenRequests, is_internal
from openai_gateway.registry import MONITORING

logger = logging.getLogger(__name__)

_GIVEN_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_LEFT = 499  # the client did not wait for its response


class Access:
    """ASGI middleware.

    It puts ``lmdeploy.request_id``, ``lmdeploy.begin`` (when the request came, by ``time.perf_counter``) and
    ``lmdeploy.finally``, a list of what to call when the request is over, into the request's scope.
    """

    def __init__(
        self, app: ASGIApp, *, metrics: RequestMetrics, max_requests: int, open_requests: OpenRequests | None = None
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._max_requests = max_requests  # requests of clients beyond this many at a time are refused
        self._open = open_requests or OpenRequests()  # counts them; default: for this alone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        if method == "HEAD":  # to the application it is GET; the server keeps the body back
            scope = {**scope, "method": "GET"}
        begin = time.perf_counter()
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _GIVEN_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
        REQUEST_ID.set(request_id)
        finally_: list[Callable[[], None]] = []
        scope["lmdeploy.request_id"], scope["lmdeploy.begin"] = request_id, begin
        scope["lmdeploy.finally"] = finally_
        status = _LEFT

        async def with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        path, counts = scope["path"], not is_internal(scope)
        self._open.count += counts
        self._metrics.open.inc()
        try:
            if counts and self._open.count > self._max_requests and path not in MONITORING:
                rejection = ApiError(429, "The server has too many requests open; try again later.", code="overloaded")
                await rejection.response(scope["path"])(scope, receive, with_id)
            else:
                await self._app(scope, receive, with_id)
        finally:
            self._open.count -= counts
            self._metrics.open.dec()
            for release in finally_:
                release()
            seconds = time.perf_counter() - begin
            route = scope.get("route")
            self._metrics.observe(getattr(route, "path", "other"), method, status, seconds)
            logger.info(
                "request=%s method=%s path=%s status=%d ms=%.1f",
                request_id,
                method,
                one_line(path),
                status,
                seconds * 1000,
            )
