"""FastAPI application of the gateway: routes, error handlers, and the client they share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.middleware.cors import CORSMiddleware

from lmdeploy.serve.client import TritonClient
from lmdeploy.version import __version__
from openai_gateway.batches.runner import BatchRunner
from openai_gateway.batches.work import Slots, dispatcher
from openai_gateway.docs_page import DESCRIPTION, add_docs_page
from openai_gateway.endpoints import adapters, cache, loading, models, probes, render, sleeping, tokens
from openai_gateway.endpoints.batches import route as batches
from openai_gateway.endpoints.chat import route as chat
from openai_gateway.endpoints.completions import route as completions
from openai_gateway.endpoints.embeddings import route as embeddings
from openai_gateway.endpoints.files import route as files
from openai_gateway.endpoints.interactive import route as interactive
from openai_gateway.endpoints.messages import route as messages
from openai_gateway.endpoints.ollama import pulling
from openai_gateway.endpoints.ollama import route as ollama
from openai_gateway.endpoints.responses import route as responses
from openai_gateway.endpoints.scoring import route as scoring
from openai_gateway.endpoints.tei import route as tei
from openai_gateway.error_handling import install_error_handlers
from openai_gateway.errors import ErrorResponse, failures
from openai_gateway.gateway import Gateway
from openai_gateway.metrics.page import GatewayMetrics
from openai_gateway.middleware.access import Access
from openai_gateway.middleware.admin_keys import AdminKeys
from openai_gateway.middleware.api_keys import ApiKeys
from openai_gateway.middleware.body_limit import BodyLimit
from openai_gateway.middleware.origins import Origins
from openai_gateway.process.ledger import Ledger
from openai_gateway.process.registration import Registration
from openai_gateway.registry import OF_PATH
from openai_gateway.settings import Settings

ROUTERS: tuple[APIRouter, ...] = tuple(
    routes.router
    for routes in (
        *(models, loading, sleeping, adapters, cache, chat, completions, responses, messages, ollama, pulling, probes),
        *(embeddings, scoring, tei, files, batches, render, tokens, interactive),
    )
)
"""Routes of all endpoints of `openai_gateway.registry`."""


def create_app(settings: Settings, client: TritonClient | None = None) -> FastAPI:
    """Return the gateway as an ASGI application; raise `QosConfigError` if the policy file is unusable.

    ``settings``: Triton need not run yet; requests get 503 until it does. ``client``: answers requests; default: one of
    the settings' Triton.
    """
    ledger = Ledger(settings.ledger) if settings.ledger else None
    counted = GatewayMetrics()
    tracing = None
    if settings.trace_endpoint:
        from openai_gateway.tracing.spans import TraceRequests, Tracing

        tracing = Tracing(settings.trace_endpoint, counted.spans_lost.inc)
    client = client or TritonClient(settings.triton_address, ledger, settings.control_key, tracing)
    gateway = Gateway(settings, client, counted, tracing)
    registration = Registration(gateway)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with gateway.client:
            registration.start()
            await gateway.responses.clean()
            if gateway.batch_runner is not None:
                gateway.batch_runner.start()
            try:
                yield
            finally:
                await registration.stop()
                if gateway.batch_runner is not None:
                    await gateway.batch_runner.stop()
                await gateway.engine_page.close()
                if tracing is not None:
                    await asyncio.to_thread(tracing.close)

    app = FastAPI(
        title="LMDeploy",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None if settings.disable_fastapi_docs else DESCRIPTION,
        lifespan=lifespan,
        responses=failures(ErrorResponse),
    )
    if not settings.disable_fastapi_docs:
        add_docs_page(app)
    app.state.gateway, app.state.registration = gateway, registration
    for router in ROUTERS:
        app.include_router(router)
    install_error_handlers(app, _check_model)
    # The last one added is the first one reached.
    file_bytes = None if settings.files_dir is None else settings.max_file_bytes
    app.add_middleware(
        BodyLimit,
        max_bytes=settings.max_body_bytes,
        max_bytes_in_all=settings.max_bodies_bytes,
        max_file_bytes=file_bytes,
    )
    app.add_middleware(AdminKeys, keys=settings.admin_keys, has_api_keys=bool(settings.api_keys))
    if settings.api_keys:
        app.add_middleware(ApiKeys, keys=settings.api_keys, node_key=settings.node_key)
    else:
        app.add_middleware(Origins, allowed=settings.allow_origins)
    if settings.allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.allow_origins),
            allow_methods=list(settings.allow_methods),
            allow_headers=list(settings.allow_headers),
            allow_credentials=settings.allow_credentials,
            expose_headers=["x-request-id"],
        )
    if tracing is not None:
        app.add_middleware(TraceRequests, tracing=tracing)
    app.add_middleware(
        Access,
        metrics=gateway.metrics.requests,
        max_requests=settings.max_requests,
        open_requests=gateway.open_requests,
    )
    if gateway.store is not None:
        slots = Slots(settings.batch_rows, gateway.open_requests)
        gateway.batch_runner = BatchRunner(
            gateway.store, settings.api_keys, slots, lambda key: dispatcher(app, key), settings.max_body_bytes
        )
    return app


async def _check_model(request: Request, error: RequestValidationError) -> None:
    """Raise that a model is not served, which LMDeploy checks before values."""
    endpoint = OF_PATH.get(request.scope["path"])
    checks = endpoint is not None and endpoint.checks_model and isinstance(error.body, dict)
    model = error.body.get("model") if checks else None
    if isinstance(model, str):
        gateway: Gateway = request.app.state.gateway
        await gateway.choose(model, request)
