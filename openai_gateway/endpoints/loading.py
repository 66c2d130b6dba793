"""``POST /v1/load_model`` and ``POST /v1/unload_model``, for administrators of a server with several models."""

from __future__ import annotations

import asyncio
from pathlib import PurePath
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import Field

from lmdeploy.paths import named_model
from lmdeploy.serve.multi_model.administration import Administration
from lmdeploy.serve.multi_model.requested import RequestedModel
from openai_gateway.errors import ApiError
from openai_gateway.gateway import Gateway, GatewayDependency
from openai_gateway.parsing import BoundedRoute
from openai_gateway.protocol.fields import AnyText, Duration, JsonObject, Strict, Text
from openai_gateway.registry import LOAD_MODEL, UNLOAD_MODEL

router = APIRouter(route_class=BoundedRoute)


class LoadModel(Strict):
    """Body of ``POST /v1/load_model``: a folder of the server's machine, what it is called, and how it is run."""

    model_name: Text
    model_path: AnyText
    chat_template: AnyText | None = None
    backend: Literal["turbomind", "pytorch"] | None = None
    engine: JsonObject | None = None
    idle_timeout: Duration = Field(None, description="As `--idle-timeout`, of this model.")


class UnloadModel(Strict):
    """Body of ``POST /v1/unload_model``."""

    model_name: Text


@router.post(LOAD_MODEL)
async def load_model(body: LoadModel, gateway: GatewayDependency) -> str:
    """Load one more model. Responses when it can be used; where it cannot be, nothing has changed."""
    administration = _administration(gateway)
    path = body.model_path if PurePath(body.model_path).is_absolute() else await asyncio.to_thread(_pulled, body)
    if body.chat_template and "/" in body.chat_template and not PurePath(body.chat_template).is_absolute():
        raise ApiError(400, "chat_template must be a template's name or an absolute path.", param="chat_template")
    given: dict[str, Any] = {"chat_template": body.chat_template, "backend": body.backend, "engine": body.engine}
    try:
        given = {name: value for name, value in given.items() if value}
        requested = RequestedModel(name=body.model_name, path=path, idle_timeout=body.idle_timeout, **given)
    except ValueError as error:
        raise ApiError(400, str(error)) from None
    await administration.load(requested)
    return f"Success: model '{body.model_name}' added successfully."


@router.post(UNLOAD_MODEL)
async def unload_model(body: UnloadModel, gateway: GatewayDependency) -> str:
    """Refuse later requests for a model. Responses when open ones have ended, and its memory is free."""
    await _administration(gateway).unload(body.model_name)
    return f"Success: model '{body.model_name}' removed successfully."


def _pulled(body: LoadModel) -> str:
    """Return the path of a model of this machine that a name stands for."""
    try:
        found = named_model(body.model_path)
    except ValueError as error:
        raise ApiError(400, str(error), param="model_path") from None
    if found is None:
        message = "model_path must be the absolute path of a folder on the server, or the name of a model on it."
        raise ApiError(400, message, param="model_path")
    return str(found)


def _administration(gateway: Gateway) -> Administration:
    if gateway.administration is None:
        message = "This server has one model for good; start it with several models, or with --models-file."
        raise ApiError(400, message, code="not_supported")
    return gateway.administration
