"""``/api/chat``, ``/api/generate`` and ``/api/embed``; and what there is: ``/api/tags``, ``/api/show`` and others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, Literal

import orjson
from fastapi import APIRouter, Request, Response

from lmdeploy.version import __version__
from openai_gateway.answering.cancellation import run_unless_disconnected
from openai_gateway.answering.collecting import collect
from openai_gateway.answering.streaming import EventResponse, event_stream
from openai_gateway.endpoints.chat.protocol import ChatCompletionRequest
from openai_gateway.endpoints.chat.route import generate_request, thoughts_of
from openai_gateway.endpoints.completions.infilling import infilling_by
from openai_gateway.endpoints.embeddings.vectors import vectors_of
from openai_gateway.endpoints.ollama.protocol import ChatRequest, EmbedRequest, GenerateRequest, ShowRequest, name_of
from openai_gateway.endpoints.ollama.writer import LineWriter
from openai_gateway.errors import ApiError, OllamaErrorResponse
from openai_gateway.gateway import Gateway, GatewayDependency
from openai_gateway.models import Chosen, ServedModel
from openai_gateway.parsing import BoundedRoute
from openai_gateway.tools.calls import parser_for

_FAILURES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": OllamaErrorResponse, "description": "The request was refused."},
    "5XX": {"model": OllamaErrorResponse, "description": "The request failed."},
}
_LINES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/x-ndjson": {}}}}
_FOREVER = "9999-12-31T00:00:00Z"  # models stay in memory

router = APIRouter(route_class=BoundedRoute, responses=_FAILURES)


@router.post("/api/chat", response_model=dict[str, Any], responses=_LINES)
async def chat(body: ChatRequest, request: Request, gateway: GatewayDependency) -> Response:
    """Answer a conversation."""
    chosen = await gateway.choose(name_of(body.model), request)
    return await _answer("chat", body.as_openai(), body.streams, body.model, chosen, request, gateway)


@router.post("/api/generate", response_model=dict[str, Any], responses=_LINES)
async def generate(body: GenerateRequest, request: Request, gateway: GatewayDependency) -> Response:
    """Answer a question; go on with a text, with `raw`; fill in a middle, with `suffix`."""
    chosen = await gateway.choose(name_of(body.model), request)
    plain, stops = body.prompt if body.raw else None, list[str]()
    if body.suffix:
        infilling = infilling_by(chosen.model)
        plain, stops = infilling.prompt(body.prompt, body.suffix), list(infilling.stop_words)
    asked = body.as_openai(plain)
    return await _answer("generate", asked, body.streams, body.model, chosen, request, gateway, stops)


@router.post("/api/embed")
async def embed(body: EmbedRequest, request: Request, gateway: GatewayDependency) -> dict[str, Any]:
    """Return the vector of each text."""
    chosen = await gateway.choose(name_of(body.model), request)
    texts = [body.input] if isinstance(body.input, str) else body.input
    vectors, usage = await vectors_of(gateway, request, chosen, texts, None, body.dimensions)
    return {"model": body.model, "embeddings": vectors.tolist(), "prompt_eval_count": usage.prompt_tokens}


@router.get("/api/tags")
async def tags(gateway: GatewayDependency) -> dict[str, Any]:
    """Return the models."""
    return {"models": [_described(gateway, model) for model in await gateway.models.all()]}


@router.get("/api/ps")
async def loaded(gateway: GatewayDependency) -> dict[str, Any]:
    """Return the models, all of which are in memory."""
    more = {"expires_at": _FOREVER, "size_vram": 0}
    return {"models": [_described(gateway, model) | more for model in await gateway.models.all()]}


@router.post("/api/show")
async def show(body: ShowRequest, request: Request, gateway: GatewayDependency) -> dict[str, Any]:
    """Return what a model can do."""
    if (asked := body.model or body.name) is None:
        raise ApiError(400, "model is required", param="model")
    model = (await gateway.choose(name_of(asked), request)).model
    traits = {"embedding": model.pooling, "insert": model.infilling, "thinking": model.thinking}
    capabilities = ["completion", "tools", *(name for name, trait in traits.items() if trait is not None)]
    described = _described(gateway, model)
    return {"modelfile": "", "template": "", "model_info": {}, "capabilities": capabilities} | {
        name: described[name] for name in ("details", "modified_at")
    }


@router.get("/api/version")
async def version() -> dict[str, str]:
    """Return the version of this server."""
    return {"version": __version__}


async def _answer(
    kind: Literal["chat", "generate"],
    body: ChatCompletionRequest,
    streams: bool,
    asked_model: str,
    chosen: Chosen,
    request: Request,
    gateway: Gateway,
    stops: Sequence[str] = (),
) -> Response:
    thinking = None if body.is_constrained else chosen.model.thinking
    asked = generate_request(body, thinking)
    asked.stream = streams
    asked.fields["stop_words"] = [*asked.fields.get("stop_words", ()), *stops]
    gateway.admit(request, asked, chosen=chosen)
    await gateway.bring_pictures(asked)
    chunks = gateway.watched(request, chosen.model, chosen.model.client.generate(asked))
    parser = parser_for(body.usable_tools, is_forced=False, notation=chosen.model.call_notation)
    begin = request.scope["lmdeploy.begin"]
    writer = LineWriter(kind, asked_model, begin, thoughts_of(body, thinking), parser)
    if streams:
        stream = event_stream([chunks], [writer], writer.end)
        return EventResponse(stream, frame_error=_last_line, media_type="application/x-ndjson")
    answers = await run_unless_disconnected(request.receive, collect([chunks]))
    await writer.write(answers.choices[0].chunks)
    writer.end(answers.usage)
    return Response(orjson.dumps(writer.answer), media_type="application/json")


def _described(gateway: Gateway, model: ServedModel) -> dict[str, Any]:
    details = {"format": "safetensors", "family": "", "families": [], "parameter_size": "", "quantization_level": ""}
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": datetime.fromtimestamp(gateway.started, timezone.utc).isoformat(),
        "size": 0,
        "digest": hashlib.sha256(model.name.encode()).hexdigest(),
        "details": details,
    }


def _last_line(error: ApiError) -> bytes:
    return error.ollama_body() + b"\n"
