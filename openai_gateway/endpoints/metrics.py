"""``GET /metrics``: the gateway's figures, and the engine's passed through."""

from __future__ import annotations

import logging

import httpx
from fastapi import APIRouter, Request, Response

from openai_gateway.gateway import GatewayDependency
from openai_gateway.metrics import GatewayMetrics

logger = logging.getLogger(__name__)
router = APIRouter()

_TIMEOUT = 3.0  # seconds
_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request, gateway: GatewayDependency) -> Response:
    """Return all figures in Prometheus' text format; the engine's only while it answers."""
    own: GatewayMetrics = request.app.state.metrics
    figures = own.text()
    if url := gateway.settings.triton_metrics_url:
        figures += await _engine_figures(url)
    return Response(figures, media_type=_MEDIA_TYPE)


async def _engine_figures(url: str) -> bytes:
    try:
        async with httpx.AsyncClient(verify=False, trust_env=False, timeout=_TIMEOUT) as http:
            answer = await http.get(url)
            answer.raise_for_status()
    except httpx.HTTPError as error:
        logger.warning("the engine's metrics at %s could not be had: %r", url, error)
        return b""
    return answer.content
