"""Takes HTTP requests from Ray's proxies, and has a replica answer each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from ray.exceptions import RayError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, RayServeException, RequestCancelledError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from lmdeploy.serve.ray.exchange import REPLICA_HEADER, SESSION_HEADER, UNAVAILABLE, Asked, Head, asked_of
from openai_gateway.answering.streaming import event
from openai_gateway.errors import ApiError
from openai_gateway.middleware.api_keys import ADAPTER_PATHS

logger = logging.getLogger(__name__)

_ATTEMPTS = 6
_PAUSE = 0.2  # seconds before the second attempt, and as much longer before each later one
_HEALTH_SECONDS = 5.0
_LARGE = 64 * 1024  # bytes of a body that is better read beside the event loop
_BUSY = "All replicas are busy, and no more requests may wait; try again later."
_DROPPED = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "te", "transfer-encoding", "upgrade"}
)


class Ingress:
    """What Ray Serve runs in front of the replicas.

    Parameters
    ----------
    replicas
        Ray's handle of them.
    adapters
        Names of LoRA adapters.
    max_body_bytes
        A longer body is refused.
    """

    def __init__(self, replicas: DeploymentHandle, adapters: tuple[str, ...], max_body_bytes: int) -> None:
        self._replicas = replicas.options(method_name="answer", stream=True)
        self._adapters = frozenset(adapters)
        self._max_body_bytes = max_body_bytes

    async def __call__(self, request: Request) -> Response:
        """Return a replica's answer."""
        try:
            if request.url.path in ADAPTER_PATHS:
                message = "Replicas have the same adapters: those the application was deployed with."
                raise ApiError(403, message, code="forbidden")
            asked = await self._read(request)
            if request.url.path != "/health":
                return await self._answer(asked)
            try:
                return await asyncio.wait_for(self._answer(asked), _HEALTH_SECONDS)
            except asyncio.TimeoutError:
                raise ApiError(503, "No replica is ready.", code="service_unavailable") from None
        except ApiError as error:
            return error.response()

    async def _read(self, request: Request) -> Asked:
        """Return the whole request.

        Raises
        ------
        ApiError
            It is too long.
        """
        pieces, length = [], 0
        async for piece in request.stream():
            length += len(piece)
            if length > self._max_body_bytes:
                raise ApiError(413, f"The request body is longer than {self._max_body_bytes} bytes.")
            pieces.append(piece)
        body = b"".join(pieces)
        headers = tuple((name, value) for name, value in request.headers.items() if name not in _DROPPED)
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        given = request.method, target, headers, body, request.headers.get(SESSION_HEADER)
        if length < _LARGE:
            return asked_of(*given)
        return await asyncio.to_thread(asked_of, *given)

    async def _answer(self, asked: Asked) -> Response:
        """Return the answer of the first replica that gives one: all of it, or the beginning of a stream.

        Raises
        ------
        ApiError
            None answered.
        """
        refusal = None
        for attempt in range(_ATTEMPTS):
            await asyncio.sleep(_PAUSE * attempt)
            pieces = self._ask(asked)
            try:
                head = await anext(pieces)
                assert isinstance(head, Head)
                if head.status == UNAVAILABLE:
                    refusal = await _whole(pieces, head)
                    asked = asked.avoiding(head.replica)
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
        if refusal is not None and refusal.body:
            return refusal
        raise ApiError(503, "No replica can answer now; try again later.", code="service_unavailable")

    async def _ask(self, asked: Asked) -> AsyncGenerator[Head | bytes, None]:
        handle = self._replicas
        if asked.model in self._adapters:
            handle = handle.options(multiplexed_model_id=asked.model)
        answer: Any = handle.remote(asked)
        try:
            async for piece in answer:
                yield piece
        finally:
            answer.cancel()  # does nothing to an answer that has ended


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
            logger.warning("a replica failed within its answer: %s", error)
            yield event(ApiError(502, "The replica failed within its answer.").body())


async def _whole(pieces: AsyncGenerator[Head | bytes, None], head: Head) -> Response:
    body = b"".join([piece async for piece in pieces if isinstance(piece, bytes)])
    return Response(body, head.status, _headers(head))
