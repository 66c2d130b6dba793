"""``/sleep``, ``/wake_up`` and ``/is_sleeping``, as in vLLM, for one model or all."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel

from openai_gateway.gateway import Gateway, GatewayDependency
from openai_gateway.models import ServedModel
from openai_gateway.registry import IS_SLEEPING, SLEEP, WAKE_UP

router = APIRouter()

_Model = Annotated[str | None, Query(description="Name of the model; all by default.")]
_Level = Annotated[int, Query(ge=1, le=2, description="1: gives the memory of the cache back; 2: weights too.")]


class Sleeping(BaseModel):
    """Response of ``GET /is_sleeping``."""

    is_sleeping: bool


@router.post(SLEEP, response_class=Response)
async def sleep(gateway: GatewayDependency, model: _Model = None, level: _Level = 1) -> Response:
    """Put models to sleep once their open requests have ended. The next request for one wakes it."""
    await asyncio.gather(*(one.client.sleep(level) for one in await _named(gateway, model)))
    return Response()


@router.post(WAKE_UP, response_class=Response)
async def wake_up(gateway: GatewayDependency, model: _Model = None) -> Response:
    """Load models that sleep."""
    await asyncio.gather(*(one.client.wake() for one in await _named(gateway, model)))
    return Response()


@router.get(IS_SLEEPING)
async def is_sleeping(gateway: GatewayDependency, model: _Model = None) -> Sleeping:
    """Return whether a model sleeps, or all do."""
    reports = await asyncio.gather(*(one.sleep_report() for one in await _named(gateway, model)))
    return Sleeping(is_sleeping=all(report is not None and report.state == "asleep" for report in reports))


async def _named(gateway: Gateway, name: str | None) -> list[ServedModel]:
    return await gateway.models.all() if name is None else [await gateway.administered(name, "model")]
