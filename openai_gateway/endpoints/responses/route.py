"""``/v1/responses``: create a response, retrieve and delete stored ones."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel
from starlette.convertors import StringConvertor, register_url_convertor

from openai_gateway.endpoints.files.protocol import AfterId, Order, Page, page_of
from openai_gateway.endpoints.responses.protocol import ResponsesRequest
from openai_gateway.endpoints.responses.stored import Storing, with_stored_items
from openai_gateway.endpoints.responses.writer import ResponseWriter
from openai_gateway.errors import ApiError
from openai_gateway.gateway import GatewayDependency
from openai_gateway.generation.conversation import Conversation
from openai_gateway.generation.streaming import STREAMED, respond
from openai_gateway.middleware.api_keys import key_of
from openai_gateway.parsing import BoundedRoute
from openai_gateway.stored_responses.conversations import stored_response


class ResponseId(StringConvertor):
    """A part of a path that may be a response's id, and no other path under ``/v1/responses``."""

    regex = "resp_[^/]+"


register_url_convertor("response", ResponseId())
router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/responses", response_model=dict[str, Any], responses=STREAMED)
async def create_response(body: ResponsesRequest, request: Request, gateway: GatewayDependency) -> Response:
    """Answer, in the form of OpenAI's newer API; the response is stored unless `store` is false."""
    chosen = await gateway.choose(body.model, request)
    given, body = body, await with_stored_items(body, request, gateway)
    conversation = Conversation(body, chosen.model, gateway)
    generate = conversation.request(body.generation_inputs(chosen.model.sampling_defaults))
    await gateway.bound_logprobs(chosen.model, generate)
    chunks = await gateway.dispatch(request, chosen, generate, user=body.user, session_id=body.session_id)
    storing, response_id = Storing(given, request, gateway), f"resp_{generate.request_id}"
    writer = ResponseWriter(body, response_id, chosen, conversation.machine(), storing)
    return await respond(request, chunks, writer, streams=body.stream, frame_error=writer.error)


class InputTokens(BaseModel):
    """Token count of a prompt."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(body: ResponsesRequest, request: Request, gateway: GatewayDependency) -> InputTokens:
    """Return the token count of a prompt, with the chat template and the tools applied. Nothing is generated."""
    chosen = await gateway.choose(body.model, request)
    body = await with_stored_items(body, request, gateway)
    ids = await chosen.prompt_ids(body.conversation, body.usable_tools, body.template_options)
    return InputTokens(input_tokens=len(ids))


class Deleted(BaseModel):
    """Response of ``DELETE /v1/responses/{id}``."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


@router.get("/v1/responses/{response_id:response}")
async def retrieve_response(
    response_id: str, request: Request, gateway: GatewayDependency, stream: bool = False
) -> dict[str, Any]:
    """Return a stored response."""
    stored = await stored_response(gateway.responses, key_of(request.scope), response_id)
    if stream:
        raise ApiError(400, "stream is not supported for stored responses; leave it out", param="stream")
    return stored.response


@router.post("/v1/responses/{response_id:response}/cancel")
async def cancel_response(response_id: str, request: Request, gateway: GatewayDependency) -> dict[str, Any]:
    """Refuse it: only background responses, which this server refuses, could be cancelled."""
    await stored_response(gateway.responses, key_of(request.scope), response_id)
    raise ApiError(400, "Cannot cancel a response that was not made in the background; close its connection instead.")


@router.delete("/v1/responses/{response_id:response}")
async def delete_response(response_id: str, request: Request, gateway: GatewayDependency) -> Deleted:
    """Delete a stored response; those that continue it cannot be continued any more."""
    key = key_of(request.scope)
    await stored_response(gateway.responses, key, response_id)
    await gateway.responses.delete(key, response_id)
    return Deleted(id=response_id)


@router.get("/v1/responses/{response_id:response}/input_items")
async def list_input_items(
    response_id: str,
    request: Request,
    gateway: GatewayDependency,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Order = "desc",
    after: AfterId = None,
) -> Page[dict[str, Any]]:
    """List the items that were new in the request for a stored response, the last one first by default."""
    stored = await stored_response(gateway.responses, key_of(request.scope), response_id)
    items = stored.input if order == "asc" else stored.input[::-1]
    return Page[dict[str, Any]].model_validate(page_of(items, after, limit))
