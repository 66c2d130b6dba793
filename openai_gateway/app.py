"""The application: routes, error handlers, and the client they share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from lmdeploy.serve.client import TritonClient
from lmdeploy.version import __version__
from openai_gateway import chat, completions, models
from openai_gateway.body_limit import BodyLimit
from openai_gateway.errors import ErrorResponse, install_error_handlers
from openai_gateway.gateway import Gateway
from openai_gateway.settings import Settings


def create_app(settings: Settings) -> FastAPI:
    """Return the gateway as an ASGI application.

    Parameters
    ----------
    settings : Settings
        Triton need not run yet; requests get 503 until it does.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with TritonClient(settings.triton_address) as client:
            app.state.gateway = Gateway(settings, client)
            yield

    failures: dict[int | str, dict[str, Any]] = {
        "4XX": {"model": ErrorResponse, "description": "The request was refused."},
        "5XX": {"model": ErrorResponse, "description": "The request failed."},
    }
    app = FastAPI(title="LMDeploy", version=__version__, docs_url="/", lifespan=lifespan, responses=failures)
    for routes in (models, chat, completions):
        app.include_router(routes.router)
    install_error_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    if settings.allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.allow_origins),
            allow_methods=["*"],
            allow_headers=["*"],
        )
    return app
