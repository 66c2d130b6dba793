"""``POST /v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from openai_gateway.endpoints.messages.protocol import MessagesRequest, Prompted
from openai_gateway.endpoints.messages.writer import MessageWriter
from openai_gateway.errors import AnthropicErrorResponse, ApiError, failures
from openai_gateway.gateway import GatewayDependency
from openai_gateway.generation.conversation import Conversation
from openai_gateway.generation.streaming import STREAMED, respond
from openai_gateway.parsing import BoundedRoute

router = APIRouter(route_class=BoundedRoute, responses=failures(AnthropicErrorResponse))


class TokenCount(BaseModel):
    """Response of ``POST /v1/messages/count_tokens``."""

    input_tokens: int


@router.post("/v1/messages", response_model=dict[str, Any], responses=STREAMED)
async def create_message(body: MessagesRequest, request: Request, gateway: GatewayDependency) -> Response:
    """Answer a conversation, in the form of Anthropic's API."""
    chosen = await gateway.choose(body.model, request)
    conversation = Conversation(body, chosen.model, gateway)
    inputs = body.generation_inputs(chosen.model.sampling_defaults)
    if (limit := await chosen.model.context_len()) is not None:  # beyond, the context ends the message
        inputs["max_new_tokens"] = min(body.max_tokens, limit)
    generate = conversation.request(inputs, counts_reasoning=False)
    user = body.metadata.user_id if body.metadata else None
    chunks = await gateway.dispatch(request, chosen, generate, user=user or body.user, session_id=body.session_id)
    writer = MessageWriter(body, f"msg_{generate.request_id}", chosen.name, conversation.machine())
    return await respond(request, chunks, writer, streams=body.stream, frame_error=_error_event)


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: Prompted, request: Request, gateway: GatewayDependency) -> TokenCount:
    """Return the token count of a prompt, with the chat template and the tools applied. Nothing is generated."""
    chosen = await gateway.choose(body.model, request)
    ids = await chosen.prompt_ids(body.conversation, body.usable_tools, body.template_options)
    return TokenCount(input_tokens=len(ids))


def _error_event(error: ApiError) -> bytes:
    """Return the last event of a message that failed."""
    return b"event: error\ndata: " + error.anthropic_body() + b"\n\n"
