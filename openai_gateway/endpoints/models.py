"""``GET /v1/models`` and ``GET /health``."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from openai_gateway.errors import ApiError
from openai_gateway.gateway import GatewayDependency

router = APIRouter()


class ModelPermission(BaseModel):
    """What one may do with a model; LMDeploy's clients expect it to be there."""

    id: str
    object: Literal["model_permission"] = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = True
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(BaseModel):
    """One served model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "lmdeploy"
    root: str
    parent: str | None = None
    permission: list[ModelPermission] = Field(default_factory=list)


class ModelList(BaseModel):
    """Answer of ``GET /v1/models``."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


@router.get("/v1/models")
async def list_models(gateway: GatewayDependency) -> ModelList:
    """List the served model."""
    return ModelList(data=[await _card(gateway)])


@router.get("/v1/models/{model:path}")
async def get_model(model: str, gateway: GatewayDependency) -> ModelCard:
    """Describe one model."""
    await gateway.check_model(model)
    return await _card(gateway)


@router.get("/health", response_class=Response)
async def health(gateway: GatewayDependency) -> Response:
    """Answer 200, empty, when requests can be served; 503 otherwise."""
    if await gateway.client.is_ready():
        return Response()
    raise ApiError(503, "The model is not ready.", code="service_unavailable")


async def _card(gateway: GatewayDependency) -> ModelCard:
    name = await gateway.model_name()
    permission = ModelPermission(id=f"modelperm-{name}", created=gateway.started)
    return ModelCard(id=name, root=name, created=gateway.started, permission=[permission])
