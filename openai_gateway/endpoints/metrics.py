"""``GET /metrics``: the gateway's metrics, and the engine's passed through."""

from __future__ import annotations

from contextlib import suppress

from fastapi import APIRouter, Response

from lmdeploy.serve.client import TritonUnavailable
from openai_gateway.gateway import GatewayDependency

router = APIRouter()

_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(gateway: GatewayDependency) -> Response:
    """Return all metrics in Prometheus' text format; the engine's only while it answers."""
    with suppress(TritonUnavailable):  # rates need the zeros before the first response
        for model in await gateway.models.all():
            gateway.metrics.responses.of(model.name)
    engine = await gateway.engine_page.text()
    return Response(gateway.metrics.text() + engine, media_type=_MEDIA_TYPE)
