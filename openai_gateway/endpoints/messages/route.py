"""``POST /v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from lmdeploy.serve.client import GenerateRequest
from lmdeploy.templates.thinking import Thinking
from openai_gateway.endpoints.messages.protocol import MessagesRequest, Prompted
from openai_gateway.endpoints.messages.writer import MessageWriter
from openai_gateway.errors import AnthropicErrorResponse, ApiError
from openai_gateway.gateway import GatewayDependency
from openai_gateway.generation.cancellation import run_unless_disconnected
from openai_gateway.generation.collecting import collect
from openai_gateway.generation.response import response_machine
from openai_gateway.generation.streaming import STREAMED, EventResponse, event_stream
from openai_gateway.models import ServedModel
from openai_gateway.parsing import BoundedRoute
from openai_gateway.reasoning import requests_reasoning
from openai_gateway.tools.request import tool_inputs

_FAILURES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": AnthropicErrorResponse, "description": "The request was refused."},
    "5XX": {"model": AnthropicErrorResponse, "description": "The request failed."},
}
router = APIRouter(route_class=BoundedRoute, responses=_FAILURES)


class TokenCount(BaseModel):
    """Response of ``POST /v1/messages/count_tokens``."""

    input_tokens: int


@router.post("/v1/messages", response_model=dict[str, Any], responses=STREAMED)
async def create_message(body: MessagesRequest, request: Request, gateway: GatewayDependency) -> Response:
    """Answer a conversation, in the form of Anthropic's API."""
    chosen = await gateway.choose(body.model, request)
    thinking = None if body.continues else chosen.model.thinking
    generate = _generate_request(body, chosen.model, thinking)
    if (longest := await chosen.model.context_len()) is not None:  # beyond, the context ends the message
        generate.fields["max_new_tokens"] = min(body.max_tokens, longest)
    user = body.metadata.user_id if body.metadata else None
    gateway.admit(request, generate, chosen=chosen, user=user or body.user, session_id=body.session_id)
    await gateway.bring_images(request, chosen.model, generate)
    machine = response_machine(
        gateway,
        chosen.model,
        thinking,
        body.template_options,
        body.for_template,
        body.usable_tools,
        is_forced=bool(body.forced_tools),
        max_calls=body.max_calls,
    )
    writer = MessageWriter(body, f"msg_{generate.request_id}", chosen.name, machine)
    chunks = gateway.watched(request, chosen.model, chosen.model.client.generate(generate))
    if body.stream:
        return EventResponse(event_stream([chunks], [writer], writer.end), frame_error=_error_event)
    responses = await run_unless_disconnected(request.receive, collect([chunks]))
    await writer.write(responses.choices[0].chunks)
    writer.end(responses.usage)
    return Response(orjson.dumps(writer.message), media_type="application/json")


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: Prompted, request: Request, gateway: GatewayDependency) -> TokenCount:
    """Return how many tokens a prompt has, with the chat template and the tools applied. Nothing is generated."""
    chosen = await gateway.choose(body.model, request)
    ids = await chosen.prompt_ids(body.for_template, body.usable_tools, body.template_options)
    return TokenCount(input_tokens=len(ids))


def _generate_request(body: MessagesRequest, model: ServedModel, thinking: Thinking | None) -> GenerateRequest:
    inputs = body.generation_inputs(model.sampling_defaults)
    held = tool_inputs(
        body.usable_tools,
        body.forced_tools,
        inputs,
        model.tool_call_format,
        several=body.may_call_several,
        thinking=thinking,
    )
    inputs |= held
    budget = body.thinking.budget_tokens if body.thinking else None
    inputs |= requests_reasoning(
        thinking, inputs, is_call="response_format" in held, budget=budget, counts_tokens=False
    )
    return GenerateRequest(**inputs, want_stop_string=bool(body.stop_sequences))


def _error_event(error: ApiError) -> bytes:
    """Return the last event of a message that failed."""
    return b"event: error\ndata: " + error.anthropic_body() + b"\n\n"
