"""``POST /v1/responses``."""

from __future__ import annotations

from typing import Any, Literal

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from lmdeploy.serve.client import GenerateRequest
from lmdeploy.templates.thinking import Thinking
from openai_gateway.answering.cancellation import run_unless_disconnected
from openai_gateway.answering.collecting import collect
from openai_gateway.answering.streaming import STREAMED, EventResponse, event_stream
from openai_gateway.endpoints.responses.protocol import ResponsesRequest
from openai_gateway.endpoints.responses.writer import ResponseWriter
from openai_gateway.gateway import GatewayDependency
from openai_gateway.parsing import BoundedRoute
from openai_gateway.reasoning import asked_for_thoughts, reasoning_parser
from openai_gateway.tools.request import tool_inputs

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/responses", response_model=dict[str, Any], responses=STREAMED)
async def create_response(body: ResponsesRequest, request: Request, gateway: GatewayDependency) -> Response:
    """Answer, in the form of OpenAI's newer API. Nothing is stored."""
    chosen = await gateway.choose(body.model, request)
    thinking = None if body.is_constrained else chosen.model.thinking
    generate = _generate_request(body, thinking, chosen.model.may_hold_calls)
    gateway.admit(request, generate, chosen=chosen, user=body.user, session_id=body.session_id)
    await gateway.bring_pictures(generate)
    thoughts = reasoning_parser(thinking, body.template_options)
    writer = ResponseWriter(body, f"resp_{generate.request_id}", chosen.name, chosen.model, thoughts)
    chunks = gateway.watched(request, chosen.model, chosen.model.client.generate(generate))
    if body.stream:
        return EventResponse(event_stream([chunks], [writer], writer.end), frame_error=writer.error)
    answers = await run_unless_disconnected(request.receive, collect([chunks]))
    await writer.write(answers.choices[0].chunks)
    writer.end(answers.usage)
    return Response(orjson.dumps(writer.response), media_type="application/json")


class InputTokens(BaseModel):
    """How many tokens a prompt has."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(body: ResponsesRequest, request: Request, gateway: GatewayDependency) -> InputTokens:
    """Return how many tokens a prompt has, with the chat template and the tools applied. Nothing is generated."""
    chosen = await gateway.choose(body.model, request)
    ids = await chosen.prompt_ids(body.messages, body.usable_tools, body.template_options)
    return InputTokens(input_tokens=len(ids))


def _generate_request(
    body: ResponsesRequest, thinking: Thinking | None, may_hold_calls: bool = False
) -> GenerateRequest:
    inputs = body.generation_inputs()
    inputs |= tool_inputs(body.usable_tools, body.forced_tools, inputs, may_hold_calls=may_hold_calls)
    inputs |= asked_for_thoughts(thinking, inputs)
    return GenerateRequest(**inputs)
