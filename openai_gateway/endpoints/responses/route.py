"""``/v1/responses``: make a response, look at stored ones, forget them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel
from starlette.convertors import StringConvertor, register_url_convertor

from lmdeploy.serve.client import GenerateRequest
from openai_gateway.endpoints.files.protocol import AfterId, Order
from openai_gateway.endpoints.responses.protocol import ResponsesRequest
from openai_gateway.endpoints.responses.stored import Storing, with_stored_items
from openai_gateway.endpoints.responses.writer import ResponseWriter
from openai_gateway.errors import ApiError
from openai_gateway.gateway import GatewayDependency
from openai_gateway.generation.cancellation import run_unless_disconnected
from openai_gateway.generation.collecting import collect
from openai_gateway.generation.response import response_machine
from openai_gateway.generation.streaming import STREAMED, EventResponse, event_stream
from openai_gateway.middleware.api_keys import key_of
from openai_gateway.models import ServedModel
from openai_gateway.parsing import BoundedRoute
from openai_gateway.reasoning import requests_reasoning
from openai_gateway.stored_responses.conversations import stored_response
from openai_gateway.tools.request import tool_inputs


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
    generate = _generate_request(body, chosen.model)
    await gateway.bound_logprobs(chosen.model, generate)
    gateway.admit(request, generate, chosen=chosen, user=body.user, session_id=body.session_id)
    await gateway.bring_images(request, chosen.model, generate)
    machine = response_machine(
        gateway,
        chosen.model,
        chosen.model.thinking,
        body.template_options,
        body.messages,
        body.usable_tools,
        is_forced=bool(body.forced_tools),
        max_calls=1 if body.parallel_tool_calls is False else None,
    )
    writer = ResponseWriter(body, f"resp_{generate.request_id}", chosen.name, chosen.model, machine)
    storing = Storing(given, request, gateway, writer)
    chunks = gateway.watched(request, chosen.model, chosen.model.client.generate(generate))
    if body.stream:
        events = storing.before_the_end(event_stream([chunks], [writer], writer.end))
        return EventResponse(events, frame_error=writer.error)
    responses = await run_unless_disconnected(request.receive, collect([chunks]))
    await writer.write(responses.choices[0].chunks)
    writer.end(responses.usage)
    await storing()
    return Response(orjson.dumps(writer.response), media_type="application/json")


class InputTokens(BaseModel):
    """How many tokens a prompt has."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(body: ResponsesRequest, request: Request, gateway: GatewayDependency) -> InputTokens:
    """Return how many tokens a prompt has, with the chat template and the tools applied. Nothing is generated."""
    chosen = await gateway.choose(body.model, request)
    body = await with_stored_items(body, request, gateway)
    ids = await chosen.prompt_ids(body.messages, body.usable_tools, body.template_options)
    return InputTokens(input_tokens=len(ids))


class ItemList(BaseModel):
    """Some of the items that a response was made from."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


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
    """Forget a stored response; those that continue it cannot be continued any more."""
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
) -> ItemList:
    """List the items that were new in the request for a stored response, the last one first by default."""
    stored = await stored_response(gateway.responses, key_of(request.scope), response_id)
    items = stored.input if order == "asc" else stored.input[::-1]
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise ApiError(400, f"after must be the id of one in the list, got {after}", param="after")
    begin = 0 if after is None else ids.index(after) + 1
    some = items[begin : begin + limit]
    return ItemList(
        data=some,
        first_id=some[0]["id"] if some else None,
        last_id=some[-1]["id"] if some else None,
        has_more=begin + limit < len(items),
    )


def _generate_request(body: ResponsesRequest, model: ServedModel) -> GenerateRequest:
    inputs = body.generation_inputs(model.sampling_defaults)
    held = tool_inputs(
        body.usable_tools,
        body.forced_tools,
        inputs,
        model.tool_call_format,
        several=body.may_call_several,
        thinking=model.thinking,
    )
    inputs |= held
    inputs |= requests_reasoning(model.thinking, inputs, is_call="response_format" in held)
    return GenerateRequest(**inputs)
