"""``GET /v1/models``, ``GET /health`` and ``GET /metrics``, the engine's metrics passed through."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from lmdeploy.serve.client import SleepReport, TritonUnavailable
from openai_gateway.errors import ApiError
from openai_gateway.gateway import Gateway, GatewayDependency
from openai_gateway.middleware.api_keys import keys_of
from openai_gateway.models import ServedModel
from openai_gateway.protocol.generation import SamplingFields

router = APIRouter()


class ModelPermission(BaseModel):
    """Permissions of a model; LMDeploy's clients expect them."""

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
    max_model_len: int | None = None  # tokens of prompt and response together, as vLLM has it
    sampling_defaults: dict[str, Any] | None = None  # of chat completions that do not set them
    permission: list[ModelPermission] = Field(default_factory=list)
    # of a model whose engine can sleep
    state: Literal["awake", "waking", "asleep"] | None = None
    memory_bytes: int | None = None  # weights and cache that it has now
    last_used: int | None = None  # seconds since 1970
    sleeps_in: float | None = None  # seconds, unless a request comes
    waiting_requests: int | None = None  # until it is awake
    load_error: str | None = None  # why it could not be loaded last


class ModelList(BaseModel):
    """Response of ``GET /v1/models``."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
    memory_bytes: int | None = None  # weights and caches of all models
    memory_budget: int | None = None  # bytes that they may have


@router.get("/v1/models")
async def list_models(request: Request, gateway: GatewayDependency) -> ModelList:
    """List the served models, and the LoRA adapters that the caller may use, which have theirs as their parent.

    A name without a version has the newest one as its root.
    """
    cards, reports = [], await gateway.sleep_reports()
    for model, report in reports.items():
        cards.append(await _card(gateway, model, model.name, report=report))
        with suppress(TritonUnavailable):  # the model's name is known without it
            adapters = await model.adapters.visible(*keys_of(request.scope))
            cards += [await _card(gateway, model, name, parent=model.name) for name in adapters]
    named = await gateway.models.named()
    cards += [
        await _card(gateway, model, name, root=model.name, report=reports.get(model))
        for name, model in named.items()
        if name != model.name
    ]
    taken = max((report.all_bytes for report in reports.values() if report is not None), default=None)
    return ModelList(data=cards, memory_bytes=taken, memory_budget=gateway.models_memory)


@router.get("/v1/models/{model:path}")
async def get_model(model: str, request: Request, gateway: GatewayDependency) -> ModelCard:
    """Describe one model."""
    chosen = await gateway.choose(model, request)
    if chosen.is_adapter:
        return await _card(gateway, chosen.model, chosen.name, parent=chosen.model.name)
    report = await chosen.model.sleep_report()
    return await _card(gateway, chosen.model, chosen.name, root=chosen.model.name, report=report)


@router.get("/health", response_class=Response)
async def health(gateway: GatewayDependency) -> Response:
    """Answer 200, empty, when requests can be served; 503 otherwise."""
    if await gateway.is_ready():
        return Response()
    raise ApiError(503, "The model is not ready.", code="service_unavailable")


async def _card(
    gateway: Gateway,
    model: ServedModel,
    name: str,
    *,
    parent: str | None = None,
    root: str | None = None,
    report: SleepReport | None = None,
) -> ModelCard:
    permission = ModelPermission(id=f"modelperm-{name}", created=gateway.started)
    return ModelCard(
        id=name,
        root=root or name,
        parent=parent,
        max_model_len=await model.context_len(),
        created=gateway.started,
        sampling_defaults={**(model.sampling_defaults or SamplingFields.defaults)},
        permission=[permission],
        **({} if report is None else _memory(report)),
    )


def _memory(report: SleepReport) -> dict[str, Any]:
    return {
        "state": report.state,
        "memory_bytes": report.bytes,
        "last_used": int(time.time() - (report.idle_seconds or 0)),
        "sleeps_in": report.sleeps_in,
        "waiting_requests": report.waiting,
        "load_error": report.error or None,
    }


_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(gateway: GatewayDependency) -> Response:
    """Return all metrics in Prometheus' text format; the engine's only while it answers."""
    with suppress(TritonUnavailable):  # rates need the zeros before the first response
        for model in await gateway.models.all():
            gateway.metrics.responses.of(model.name)
    engine = await gateway.engine_page.text()
    return Response(gateway.metrics.text() + engine, media_type=_MEDIA_TYPE)
