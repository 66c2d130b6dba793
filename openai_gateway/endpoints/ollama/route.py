"""``/api/chat``, ``/api/generate``, ``/api/embed``, ``/api/embeddings``, and the lists of models."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from lmdeploy.version import __version__
from openai_gateway.endpoints.chat.protocol import ChatCompletionRequest
from openai_gateway.endpoints.completions.prompts import whole_prompt
from openai_gateway.endpoints.embeddings.vectors import PoolingParams, ServeContext, vectors_of
from openai_gateway.endpoints.ollama.described import listed, shown
from openai_gateway.endpoints.ollama.protocol import (
    ChatRequest,
    EmbeddingsRequest,
    EmbedRequest,
    GenerateRequest,
    NamedModel,
    name_of,
)
from openai_gateway.endpoints.ollama.writer import LINES, Kind, LineWriter, last_line, nanoseconds, piece
from openai_gateway.errors import OllamaErrorResponse, failures
from openai_gateway.gateway import Gateway, GatewayDependency
from openai_gateway.generation.conversation import Conversation
from openai_gateway.generation.streaming import respond
from openai_gateway.models import Chosen, ServedModel
from openai_gateway.parsing import BoundedRoute

_API_VERSION = "0.14.0"  # the first with /v1/responses and /v1/messages; Codex asks for 0.13.4 or later
_FOREVER = "9999-12-31T00:00:00Z"

router = APIRouter(route_class=BoundedRoute, responses=failures(OllamaErrorResponse))


@router.post("/api/chat", response_model=dict[str, Any], responses=LINES)
async def chat(body: ChatRequest, request: Request, gateway: GatewayDependency) -> Response:
    """Answer a conversation."""
    chosen = await gateway.choose(name_of(body.model), request)
    if body.is_empty:
        return await _loaded("chat", body, chosen.model)
    conversation = body.as_openai(await chosen.model.context_len())
    return await _respond("chat", conversation, body, chosen, request, gateway)


@router.post("/api/generate", response_model=dict[str, Any], responses=LINES)
async def generate(body: GenerateRequest, request: Request, gateway: GatewayDependency) -> Response:
    """Answer a question; continue with a text, with `raw`; fill in a middle, with `suffix`."""
    chosen = await gateway.choose(name_of(body.model), request)
    if body.is_empty:
        return await _loaded("generate", body, chosen.model)
    prompt, stops = whole_prompt(chosen.model, body.prompt, body.suffix)
    as_it_is = str(prompt) if body.raw or body.suffix else None
    conversation = body.as_openai(await chosen.model.context_len(), as_it_is)
    return await _respond("generate", conversation, body, chosen, request, gateway, stops)


@router.post("/api/embed")
async def embed(body: EmbedRequest, request: Request, gateway: GatewayDependency) -> dict[str, Any]:
    """Return the vector of each text."""
    chosen = await gateway.choose(name_of(body.model), request)
    embeddings, tokens = list[list[float]](), 0
    if body.texts:
        params = PoolingParams(body.dimensions, truncate=body.truncate is not False)
        context = ServeContext(gateway, request, chosen, keep_alive=body.keep_alive)
        vectors, usage = await vectors_of(context, body.texts, params)
        embeddings, tokens = vectors.tolist(), usage.prompt_tokens
    return {
        "model": body.model,
        "embeddings": embeddings,
        "total_duration": nanoseconds(time.perf_counter() - request.scope["lmdeploy.begin"]),
        "load_duration": 0,
        "prompt_eval_count": tokens,
    }


@router.post("/api/embeddings")
async def embed_one(body: EmbeddingsRequest, request: Request, gateway: GatewayDependency) -> dict[str, Any]:
    """Return the vector of a text, as Ollama did before `/api/embed`."""
    chosen = await gateway.choose(name_of(body.model), request)
    if not body.prompt:
        return {"embedding": []}
    context = ServeContext(gateway, request, chosen, keep_alive=body.keep_alive)
    vectors, _ = await vectors_of(context, [body.prompt])
    return {"embedding": vectors[0].tolist()}


@router.get("/api/tags")
async def tags(gateway: GatewayDependency) -> dict[str, Any]:
    """Return the models."""
    return {"models": [listed(model, gateway.started) for model in await gateway.models.all()]}


@router.get("/api/ps")
async def loaded(gateway: GatewayDependency) -> dict[str, Any]:
    """Return the models in memory, how much of it they have and until when."""
    entries = []
    for model, report in (await gateway.sleep_reports()).items():
        entry = listed(model, gateway.started) | {"expires_at": _FOREVER, "size_vram": 0}
        if report is not None:
            if report.state != "awake":
                continue
            entry["size"] = report.bytes
            if report.sleeps_in is not None:
                entry["expires_at"] = (datetime.now(timezone.utc) + timedelta(seconds=report.sleeps_in)).isoformat()
        entries.append(entry | {"context_length": await model.context_len()})
    return {"models": entries}


@router.post("/api/show")
async def show(body: NamedModel, request: Request, gateway: GatewayDependency) -> dict[str, Any]:
    """Return a model's capabilities."""
    model = (await gateway.choose(name_of(body.required), request)).model
    return shown(model, gateway.started, await model.context_len())


@router.get("/api/version")
async def version() -> dict[str, str]:
    """Return the version of Ollama whose API this is, which clients compare, and the one of this server."""
    return {"version": _API_VERSION, "lmdeploy_version": __version__}


async def _loaded(kind: Kind, body: ChatRequest | GenerateRequest, model: ServedModel) -> Response:
    """Load a model, or with a `keep_alive` of 0 put it to sleep, for a request without anything to respond to."""
    reason = "unload" if body.keep_alive == 0 else "load"
    if reason == "unload":
        await model.client.sleep(2)
    elif await model.sleep_report() is not None:  # an engine that does not sleep is loaded
        await model.client.wake(body.keep_alive)
    done = piece(kind, body.model, "") | {"done": True, "done_reason": reason}
    return Response(orjson.dumps(done), media_type="application/json")


async def _respond(
    kind: Kind,
    body: ChatCompletionRequest,
    requested: ChatRequest | GenerateRequest,
    chosen: Chosen,
    request: Request,
    gateway: Gateway,
    stops: Sequence[str] = (),
) -> Response:
    model, conversation = chosen.model, Conversation(body, chosen.model, gateway)
    generate = conversation.request(body.generation_inputs(model.sampling_defaults))
    generate.stream, generate.return_engine_seconds = requested.streams, True
    if requested.keep_alive is not None:
        generate.fields["keep_alive"] = requested.keep_alive
    generate.fields["stop_words"] = [*generate.fields.get("stop_words", ()), *stops]
    await gateway.bound_logprobs(model, generate)
    chunks = await gateway.dispatch(request, chosen, generate)
    texts = model.token_texts if body.logprobs else None
    writer = LineWriter(kind, requested.model, request.scope["lmdeploy.begin"], conversation.machine(), texts)
    media_type = "application/x-ndjson"
    return await respond(
        request, chunks, writer, streams=requested.streams, frame_error=last_line, media_type=media_type
    )
