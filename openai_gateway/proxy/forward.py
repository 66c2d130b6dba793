"""Forwarding of a request to a node; until the first byte has gone back another node can take over."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack

import aiohttp
import orjson
from starlette.datastructures import Headers
from starlette.responses import Response

from openai_gateway.errors import ApiError
from openai_gateway.generation.streaming import EventResponse, event
from openai_gateway.middleware.api_keys import CALLER, digest_for_node
from openai_gateway.proxy.health import check
from openai_gateway.proxy.node import Node, Work
from openai_gateway.proxy.nodes import NodeTable
from openai_gateway.proxy.prompt import Prompt
from openai_gateway.proxy.settings import ProxySettings

NO_MODEL, UNAVAILABLE, TIMEOUT = 10400, 10401, 10402  # LMDeploy's error codes
_SENT_ON = ("content-type", "accept", "x-request-id", "traceparent", "tracestate")
_SENT_BACK = ("content-type", "x-request-id", "retry-after", "cache-control")
REPLICA_HEADER = "x-replica"
_TRY_ANOTHER = frozenset({429, 502, 503})
_ATTEMPTS = 8
_SHOWN_NAME = 200  # characters of a name that is refused
_FAILURES = (aiohttp.ClientError, ConnectionError, OSError)


class NodeFailed(Exception):
    """A node gave no response, or not all of one."""


def node_headers(settings: ProxySettings) -> dict[str, str]:
    """Return the headers for a node: the proxy's key, never the caller's."""
    return {} if settings.node_key is None else {"authorization": f"Bearer {settings.node_key}"}


class Forwarder:
    """Sends requests to the nodes of a table."""

    def __init__(self, table: NodeTable, http: aiohttp.ClientSession, settings: ProxySettings) -> None:
        self._table = table
        self._http = http
        self._key, self._node_key = node_headers(settings), settings.node_key
        self._retry_seconds = settings.retry_seconds
        self._timeout = aiohttp.ClientTimeout(sock_connect=settings.connect_seconds, sock_read=settings.read_seconds)

    async def forward(self, path: str, body: bytes, prompt: Prompt, headers: Headers, key: str | None) -> Response:
        """Return the response of the first node that gives one.

        Raises `ApiError` if no node serves the model, or none answered. ``key``: the caller's, which nodes learn a
        digest of; None: the proxy asks for none.
        """
        model = prompt.model
        if not self._table.is_served(model):
            message = f"The model `{model[:_SHOWN_NAME]}` does not exist."
            raise ApiError(404, message, param="model", code="model_not_found")
        sent_on = {name: headers[name] for name in _SENT_ON if name in headers} | self._key
        if key is not None and self._node_key is not None:
            sent_on[CALLER] = digest_for_node(self._node_key, key)
        deadline = time.monotonic() + self._retry_seconds
        rejection: Response | None = None
        rejected_by: set[str] = set()
        for _ in range(_ATTEMPTS):
            while (node := self._table.choose(model, rejected_by, prompt)) is None:
                left = deadline - time.monotonic()
                if rejection is not None:
                    return rejection
                if left <= 0:
                    raise ApiError(503, f"No server for `{model[:_SHOWN_NAME]}` is available now ({UNAVAILABLE}).")
                await self._table.wait_for_change(left)
            try:
                response = await self._post(node, path, body, sent_on)
            except NodeFailed as failure:
                self._table.mark_down(node, failure)
                continue
            if response.status_code not in _TRY_ANOTHER:
                return response
            rejection = response
            rejected_by.add(node.url)
            if response.status_code != 429:  # about the node, or about the request: the node knows
                await check(self._table, self._http, node)
        return (
            rejection
            or ApiError(502, f"No server for `{model[:_SHOWN_NAME]}` gave a proper answer ({UNAVAILABLE}).").response()
        )

    async def _post(self, node: Node, path: str, body: bytes, headers: Mapping[str, str]) -> Response:
        """Return a node's response, of which everything is here, or the beginning of a stream."""
        async with AsyncExitStack() as open_:
            try:
                work = open_.enter_context(Work(node))
                url = f"{node.url}{path}"
                call = self._http.post(url, data=body, headers=headers, timeout=self._timeout, allow_redirects=False)
                response = await open_.enter_async_context(call)
                back = {name: response.headers[name] for name in _SENT_BACK if name in response.headers}
                back[REPLICA_HEADER] = node.name
                if response.content_type != "text/event-stream" or response.status != 200:
                    whole = await response.read()
                    if response.status == 200:
                        orjson.loads(whole)
                        work.is_success = True
                    return Response(whole, response.status, back)
                pieces = response.content.iter_any()
                first = await anext(aiter(pieces))
            except aiohttp.SocketTimeoutError:
                raise ApiError(504, f"The server at {node.url} took too long ({TIMEOUT}).") from None
            except (*_FAILURES, StopAsyncIteration, orjson.JSONDecodeError) as error:
                raise NodeFailed(repr(error)) from None
            passed_on = EventResponse(_passed_on(first, aiter(pieces), open_.pop_all(), self._table, node, work))
            passed_on.headers.update(back)
            return passed_on


async def _passed_on(
    first: bytes, pieces: AsyncIterator[bytes], open_: AsyncExitStack, table: NodeTable, node: Node, work: Work
) -> AsyncGenerator[bytes, None]:
    """Yield a stream of a node as it comes."""
    async with open_:
        yield first
        try:
            async for piece in pieces:
                yield piece
            work.is_success = True
        except (*_FAILURES, TimeoutError) as error:
            table.mark_down(node, error)
            yield event(ApiError(502, f"The server failed within its response ({UNAVAILABLE}).").body())
