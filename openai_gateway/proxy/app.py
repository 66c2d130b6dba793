"""The proxy's application."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Annotated, Any

import aiohttp
import orjson
from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, Field

from lmdeploy.version import __version__
from openai_gateway.docs_page import add_docs_page
from openai_gateway.endpoints.models import ModelCard, ModelList, ModelPermission
from openai_gateway.error_handling import install_error_handlers
from openai_gateway.errors import ApiError, ErrorResponse, failures
from openai_gateway.generation.cancellation import run_unless_disconnected
from openai_gateway.metrics.requests import RequestMetrics
from openai_gateway.middleware.access import Access
from openai_gateway.middleware.api_keys import ApiKeys, key_of
from openai_gateway.middleware.body_limit import BodyLimit
from openai_gateway.parsing import BoundedRoute
from openai_gateway.proxy.addresses import THIS_MACHINE, CheckedResolver, base_url, checked_url
from openai_gateway.proxy.administration import NODE_PATHS, NodeAdministrators, is_here
from openai_gateway.proxy.forward import TIMEOUT, Forwarder, node_headers
from openai_gateway.proxy.health import check, watch_nodes
from openai_gateway.proxy.node import NodeStatus
from openai_gateway.proxy.nodes import NodeTable
from openai_gateway.proxy.prompt import ForwardedBody, Prompt
from openai_gateway.proxy.settings import ProxySettings
from openai_gateway.proxy.strategies import STRATEGIES
from openai_gateway.registry import PROXIED

_OF_SERVERS = {"max_model_len", "sampling_defaults"}  # of a model's card, which the proxy does not ask for
_MAX_LIST_LEN = 2**20  # bytes
_SHOWN_URL = 200  # characters
_ASK_TIMEOUT = aiohttp.ClientTimeout(total=5)


class NewNode(BaseModel):
    """Body of ``POST /nodes/add``."""

    url: Annotated[str, Field(max_length=2048)]
    status: NodeStatus | None = None


Members = Callable[[NodeTable], AbstractAsyncContextManager[Any]]


def create_proxy(settings: ProxySettings, members: Members = nullcontext) -> FastAPI:
    """Return the proxy as an ASGI application.

    ``members``: the context that the proxy serves in, which may bring nodes into its table and take them out.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        table = NodeTable(STRATEGIES[settings.strategy](), settings.state_file)
        resolver = CheckedResolver(allow_private=settings.allow_private_nodes)
        connector = aiohttp.TCPConnector(limit=0, resolver=resolver)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as http:
            app.state.table, app.state.http = table, http
            app.state.forwarder = Forwarder(table, http, settings)
            await asyncio.gather(*(check(table, http, node) for node in table))  # those of the state file
            watching = asyncio.create_task(watch_nodes(table, http, settings))
            try:
                async with members(table):
                    yield
            finally:
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching

    app = FastAPI(
        title="LMDeploy proxy",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses=failures(ErrorResponse),
    )
    add_docs_page(app)
    app.router.route_class = BoundedRoute
    _add_node_routes(app, settings)
    _add_model_routes(app)
    install_error_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes, max_bytes_in_all=settings.max_bodies_bytes)
    app.add_middleware(NodeAdministrators, settings=settings)
    if settings.api_keys:
        app.add_middleware(ApiKeys, keys=[*settings.api_keys, *settings.admin_keys])
    app.add_middleware(Access, metrics=RequestMetrics(CollectorRegistry()), max_requests=settings.max_requests)
    return app


def _add_node_routes(app: FastAPI, settings: ProxySettings) -> None:
    add, remove = NODE_PATHS

    @app.get("/nodes/status")
    async def nodes_status(request: Request) -> dict[str, NodeStatus]:
        """Return the nodes in service."""
        table: NodeTable = request.app.state.table
        return {node.url: node.status() for node in table.in_service}

    @app.post(add)
    async def add_node(node: NewNode, request: Request) -> str:
        """Take a node into service; one that does not report its models is asked for them."""
        table: NodeTable = request.app.state.table
        here, peer = is_here(request.scope), _peer(request)
        url = checked_url(node.url, allow_private=settings.allow_private_nodes, from_this_machine=here, peer=peer)
        status = node.status or NodeStatus(unfinished=0, speed=None)
        models = status.models
        if not models:
            try:
                models = await _fetch_models(request.app.state.http, url, node_headers(settings))
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError, LookupError, TypeError) as error:
                reason = " ".join(str(error).split()) or type(error).__name__
                message = f"{url}/v1/models does not report the models of a server ({TIMEOUT}): {reason}"
                raise ApiError(502, message, param="url", code="node_unreachable") from None
        table.add(url, models, status.speed)
        return "Added successfully"

    @app.post(remove)
    async def remove_node(node_url: str, request: Request) -> str:
        """Forget a node."""
        table: NodeTable = request.app.state.table
        if not table.remove(base_url(node_url, _peer(request))):
            message = f"There is no node {node_url[:_SHOWN_URL]}; GET /nodes/status lists those in service."
            raise ApiError(404, message, param="node_url", code="node_not_found")
        return "Deleted successfully"


def _add_model_routes(app: FastAPI) -> None:
    @app.get("/health", response_class=Response)
    async def health() -> Response:
        """Answer 200, empty."""
        return Response()

    @app.get("/v1/models", response_model_exclude={"data": {"__all__": _OF_SERVERS}})
    async def list_models(request: Request) -> ModelList:
        """List what the nodes in service serve."""
        table: NodeTable = request.app.state.table
        permission = [ModelPermission(id="modelperm-proxy", created=0)]
        cards = [ModelCard(id=name, root=name, created=0, permission=permission) for name in table.models]
        return ModelList(data=cards)

    for path in PROXIED:
        app.post(path, response_class=Response)(_forward)


def _peer(request: Request) -> str:
    """Return the host that asks, as others reach it."""
    return THIS_MACHINE if is_here(request.scope) or request.client is None else request.client.host


async def _forward(request: Request, body: ForwardedBody) -> Response:
    """Send the request to a node that serves its model."""
    if not isinstance(body.model, str):
        raise ApiError(400, "model must be a string", param="model", code="invalid_value")
    forwarder: Forwarder = request.app.state.forwarder
    # The route's path, not the request's: what is sent to nodes is not for callers to choose.
    path, key = request.scope["route"].path, key_of(request.scope)
    work = forwarder.forward(path, await request.body(), Prompt(body, request.headers), request.headers, key)
    return await run_unless_disconnected(request.receive, work)


async def _fetch_models(http: aiohttp.ClientSession, url: str, headers: dict[str, str]) -> list[str]:
    call = http.get(f"{url}/v1/models", timeout=_ASK_TIMEOUT, headers=headers, allow_redirects=False)
    async with call as response:
        response.raise_for_status()
        body = await response.content.read(_MAX_LIST_LEN)
        return [str(card["id"]) for card in orjson.loads(body)["data"]]
