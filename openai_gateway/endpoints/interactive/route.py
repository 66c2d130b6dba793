"""``POST /v1/chat/interactive``: a conversation whose history the engine keeps."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from lmdeploy.serve.client import GenerateChunk, GenerateRequest, TritonClient, TritonRequestError
from openai_gateway.endpoints.interactive.protocol import InteractiveRequest, InteractiveResponse
from openai_gateway.endpoints.interactive.sessions import engine_session
from openai_gateway.errors import ApiError
from openai_gateway.gateway import SET_BY_GATEWAY, Gateway, GatewayDependency
from openai_gateway.generation.collecting import finish_reason
from openai_gateway.generation.streaming import STREAMED, respond
from openai_gateway.generation.watching import cut_if_too_long
from openai_gateway.middleware.api_keys import key_of, keys_of
from openai_gateway.models import Chosen, ServedModel
from openai_gateway.parsing import BoundedRoute
from openai_gateway.protocol.outputs import Usage

router = APIRouter(route_class=BoundedRoute)

_NOTHING = InteractiveResponse(text="", tokens=0, input_tokens=0, history_tokens=0, finish_reason="stop")


@router.post("/v1/chat/interactive", response_model=InteractiveResponse, responses=STREAMED)
async def chat_interactive(
    body: InteractiveRequest, request: Request, gateway: GatewayDependency
) -> InteractiveResponse | Response:
    """Answer the next turn of a conversation; stop it, or forget it."""
    model = await gateway.default_model()
    session = None if body.session is None else engine_session(body.session, key_of(request.scope))
    if session is not None and body.cancel:
        await model.client.cancel_session(session)
        return _at_once(body)
    if session is not None and body.ends_session:
        await model.client.end_session(session)
        gateway.sessions.drop(session)
        return _at_once(body)
    turn = await _turn(body, session, request, gateway, model)
    chunks = cut_if_too_long(gateway.watched(request, model, turn))
    return await respond(request, chunks, _LineWriter(), streams=body.stream, frame_error=_error_line)


async def _turn(
    body: InteractiveRequest, session: int | None, request: Request, gateway: Gateway, model: ServedModel
) -> AsyncGenerator[GenerateChunk, None]:
    """Return the engine's stream for one turn; `session` is the engine's, None: the caller named none."""
    inputs = body.generation_inputs(model.sampling_defaults)
    alone = GenerateRequest(**inputs)
    chosen = None
    if body.adapter_name:
        if body.adapter_name not in await model.adapters.visible(*keys_of(request.scope)):
            raise ApiError(400, "There is no adapter of that name.", param="adapter_name")
        chosen = Chosen(model, body.adapter_name, is_adapter=True)
    gateway.admit(request, alone, chosen=chosen, user=body.user)
    await gateway.fetch_images(request, model, alone)
    inputs["messages"] = alone.messages
    if session is None and not body.interactive_mode:
        return model.client.generate(alone)
    is_new = session is None
    session = gateway.sessions.new_id() if session is None else session
    inputs |= {"session_id": session} | {name: alone.fields.get(name) for name in SET_BY_GATEWAY}
    if is_new:
        gateway.sessions.hold(session)
        return model.client.generate(GenerateRequest(**inputs, sequence_start=True, sequence_end=False))
    going_on = GenerateRequest(**inputs, sequence_start=False, sequence_end=not body.interactive_mode)
    if body.interactive_mode:
        gateway.sessions.hold(session)
        return _go_on(model.client, going_on, GenerateRequest(**inputs, sequence_start=True, sequence_end=False))
    gateway.sessions.drop(session)
    return _go_on(model.client, going_on, alone)


async def _go_on(
    client: TritonClient, request: GenerateRequest, if_unknown: GenerateRequest
) -> AsyncGenerator[GenerateChunk, None]:
    """Yield the response to `request`, or to `if_unknown` when the engine does not know the session.

    Only the engine knows which conversations it holds: it forgets those that are idle, and other gateways begin some.
    """
    try:
        async with aclosing(client.generate(request)) as chunks:
            async for chunk in chunks:
                yield chunk
        return
    except TritonRequestError as error:
        if "sequence_start" not in error.message:
            raise
    async with aclosing(client.generate(if_unknown)) as chunks:
        async for chunk in chunks:
            yield chunk


class _LineWriter:
    """Writes a response as LMDeploy's clients read it: one JSON object a line, the last one without text."""

    def __init__(self) -> None:
        self.response: dict[str, Any] = {"text": ""}

    async def write(self, chunks: Sequence[GenerateChunk]) -> bytes:
        last, text = chunks[-1], "".join(chunk.text for chunk in chunks)
        counts = {"input_tokens": last.input_token_len, "history_tokens": last.history_token_len}
        fields: dict[str, Any] = {"tokens": last.generate_token_len, **counts, "finish_reason": None}
        lines = _line(orjson.dumps({"text": text, **fields})) if text else b""
        if last.finish_reason is not None:
            fields["finish_reason"] = finish_reason(last)
            lines += _line(orjson.dumps({"text": "", **fields}))
        self.response = {"text": self.response["text"] + text, **fields}
        return lines

    async def end(self, usage: Usage) -> bytes:
        return b""


def _error_line(error: ApiError) -> bytes:
    return _line(error.body())


def _line(payload: bytes) -> bytes:
    return payload + b"\n"


def _at_once(body: InteractiveRequest) -> InteractiveResponse | Response:
    if body.stream:
        return Response(_line(_NOTHING.model_dump_json().encode()), media_type="text/event-stream")
    return _NOTHING
