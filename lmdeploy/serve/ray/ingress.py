"""Ingress deployment, which forwards HTTP requests of Ray's proxies to replicas."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any

from ray.exceptions import RayError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, RayServeException, RequestCancelledError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match

from lmdeploy.serve.ray.exchange import REPLICA_HEADER, SESSION_HEADER, UNAVAILABLE, Head, RoutedRequest, with_routing
from openai_gateway.app import create_app
from openai_gateway.errors import ApiError
from openai_gateway.generation.streaming import event
from openai_gateway.middleware.api_keys import matching_key, needs_key
from openai_gateway.middleware.body_limit import MAX_WAIT_SECONDS, SHORT
from openai_gateway.middleware.origins import is_same_origin
from openai_gateway.registry import ADMINISTERED
from openai_gateway.settings import Settings
from openai_gateway.shares import Shares

logger = logging.getLogger(__name__)

_ATTEMPTS = 6
_PAUSE = 0.2  # seconds before the second attempt, and as much longer before each later one
_HEALTH_SECONDS = 5.0
_LARGE = 64 * 1024  # bytes of a body that is better read alongside the event loop
_LONG = "The server has too many long requests; try again later."
_BUSY = "All replicas are busy, and no more requests may wait; try again later."
# Of a request's headers; nothing else reaches a replica's server.
_SENT_ON = frozenset(
    {
        *("accept", "authorization", "content-type", "user-agent", "x-api-key", "x-request-id", SESSION_HEADER),
        *("traceparent", "tracestate", "anthropic-version", "anthropic-beta"),
        *("origin", "access-control-request-method", "access-control-request-headers"),
    }
)


class Ingress:
    """Ray Serve deployment in front of the replicas."""

    def __init__(
        self,
        replicas: DeploymentHandle,  # Ray's handle of them
        adapters: tuple[str, ...],  # names of LoRA adapters
        max_body_bytes: int,  # a longer body is refused
        # Of all long bodies at a time, until a replica responds; as for
        # `openai_gateway.middleware.body_limit.BodyLimit`
        max_bodies_bytes: int,
        api_keys: tuple[str, ...],  # one of them is needed; empty: none is
    ) -> None:
        self._replicas = replicas.options(method_name="respond", stream=True)
        self._adapters = frozenset(adapters)
        self._max_body_bytes = max_body_bytes
        self._bodies = Shares(max_bodies_bytes, max_bodies_bytes // 2)
        self._api_keys = api_keys
        self._paths = ServedPaths()

    async def __call__(self, request: Request) -> Response:
        """Return a replica's response."""
        async with AsyncExitStack() as reserved:
            try:
                self._check(request)
                routed = await self._read(request, reserved)
                if routed.path != "/health":
                    return await self._respond(routed)
                try:
                    return await asyncio.wait_for(self._respond(routed), _HEALTH_SECONDS)
                except asyncio.TimeoutError:
                    raise ApiError(503, "No replica is ready.", code="service_unavailable") from None
            except ApiError as error:
                return error.response(request.scope["path"])

    def _check(self, request: Request) -> None:
        """Refuse what is not for a replica, by its head alone: nothing of the body has been read.

        Raises `ApiError` if there is no such path, it is not for callers here, or no key was shown.
        """
        path, method = request.scope["path"], request.scope["method"]
        if path not in self._paths:
            raise ApiError(404, f"Invalid URL ({method} {path})", code="unknown_url")
        if path in ADMINISTERED:
            message = "Replicas are alike, as the application was deployed; none of them is administered alone."
            raise ApiError(403, message, code="forbidden")
        if self._api_keys and needs_key(path, method) and matching_key(request.headers, self._api_keys) is None:
            raise ApiError(401, "Please request with valid api key!", code="invalid_api_key")

    async def _read(self, request: Request, reserved: AsyncExitStack) -> RoutedRequest:
        """Return the request; of a `POST` with its body.

        Raises `ApiError` if the body is too long, or would take too much memory as objects.
        """
        body = await self._body(request, reserved) if request.method == "POST" else b""
        scope, session = request.scope, request.headers.get(SESSION_HEADER)
        query = scope["query_string"].decode("latin-1")
        routed = RoutedRequest(scope["method"], scope["path"], query, _sent_on(request), body)
        if len(body) < _LARGE:
            return with_routing(routed, session)
        return await asyncio.to_thread(with_routing, routed, session)

    async def _body(self, request: Request, reserved: AsyncExitStack) -> bytes:
        """Return the body of a request; an error 413 where it is too long, and 503 where others leave no memory."""
        error = ApiError(413, f"The request body is longer than {self._max_body_bytes} bytes.")
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self._max_body_bytes:
            raise error
        pieces, length, has_share = [], 0, False
        async for piece in request.stream():
            length += len(piece)
            if length > self._max_body_bytes:
                raise error
            if length > SHORT and not has_share:  # nothing more is read meanwhile
                key = matching_key(request.headers, self._api_keys)
                size = int(declared) if declared.isdigit() else self._max_body_bytes
                try:
                    await reserved.enter_async_context(self._bodies.taken(key, size, MAX_WAIT_SECONDS))
                except TimeoutError:
                    raise ApiError(503, _LONG, code="overloaded") from None
                has_share = True
            pieces.append(piece)
        return b"".join(pieces)

    async def _respond(self, routed: RoutedRequest) -> Response:
        """Return the response of the first replica that gives one: all of it, or the beginning of a stream.

        Raises `ApiError` if none answered.
        """
        rejection = None
        for attempt in range(_ATTEMPTS):
            await asyncio.sleep(_PAUSE * attempt)
            pieces = self._forward(routed)
            try:
                head = await anext(pieces)
                assert isinstance(head, Head)
                if head.status == UNAVAILABLE:
                    rejection = await _whole(pieces, head)
                    routed = routed.avoiding(head.replica)
                elif _is_stream(head):
                    return StreamingResponse(_events(pieces), head.status, _headers(head))
                else:
                    return await _whole(pieces, head)
            except BackPressureError:
                raise ApiError(503, _BUSY, code="overloaded") from None
            except (TaskCancelledError, RequestCancelledError):
                raise
            except (RayError, RayServeException) as error:
                logger.warning("a replica failed before it answered: %s", error)
        if rejection is not None and rejection.body:
            return rejection
        raise ApiError(503, "No replica can answer now; try again later.", code="service_unavailable")

    async def _forward(self, routed: RoutedRequest) -> AsyncGenerator[Head | bytes, None]:
        handle = self._replicas
        if routed.model in self._adapters:
            handle = handle.options(multiplexed_model_id=routed.model)
        response: Any = handle.remote(routed)
        try:
            async for piece in response:
                yield piece
        finally:
            response.cancel()  # does nothing to a response that has ended


def _sent_on(request: Request) -> tuple[tuple[str, str], ...]:
    """Return the headers that a replica gets, as UTF-8; to its server our own origin would be another."""
    forwarded = _SENT_ON - {"origin"} if is_same_origin(request.headers) else _SENT_ON
    texts = ((name.decode("latin-1").lower(), value.decode(errors="replace")) for name, value in request.headers.raw)
    return tuple((name, value) for name, value in texts if name in forwarded)


def _is_stream(head: Head) -> bool:
    return head.headers.get("content-type", "").startswith("text/event-stream")


def _headers(head: Head) -> dict[str, str]:
    return {**head.headers, REPLICA_HEADER: head.replica}


async def _events(pieces: AsyncGenerator[Head | bytes, None]) -> AsyncIterator[bytes]:
    """Yield a stream of events; one that breaks off says so in its last event."""
    async with aclosing(pieces):
        try:
            async for piece in pieces:
                assert isinstance(piece, bytes)
                yield piece
        except RayError as error:
            logger.warning("a replica failed within its response: %s", error)
            yield event(ApiError(502, "The replica failed within its response.").body())


async def _whole(pieces: AsyncGenerator[Head | bytes, None], head: Head) -> Response:
    body = b"".join([piece async for piece in pieces if isinstance(piece, bytes)])
    return Response(body, head.status, _headers(head))


# No empty segments, which begin another host, no backslashes, which some programs read as slashes, no control
# characters, no dots alone, which leave the path that was matched.
_SAFE_PATH = re.compile(r"(?:/(?!\.\.?(?:/|$))[^/\\\x00-\x20\x7f]+)+/?|/")


class ServedPaths:
    """The paths of the gateway, by its own routes."""

    def __init__(self) -> None:
        self._routes = create_app(Settings()).routes

    def __contains__(self, path: str) -> bool:
        """Return whether the gateway has a route of this (decoded) path, of any method."""
        scope = {"type": "http", "path": path, "root_path": "", "method": "", "headers": []}
        return _SAFE_PATH.fullmatch(path) is not None and any(
            route.matches(scope)[0] is not Match.NONE for route in self._routes
        )
