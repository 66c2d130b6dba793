"""``POST /v1/responses``."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from lmdeploy.serve.client import GenerateRequest
from openai_gateway.answering.cancellation import run_unless_disconnected
from openai_gateway.answering.collecting import collect
from openai_gateway.answering.streaming import STREAMED, EventResponse, event_stream
from openai_gateway.endpoints.responses.protocol import ResponsesRequest
from openai_gateway.endpoints.responses.writer import ResponseWriter
from openai_gateway.gateway import GatewayDependency
from openai_gateway.parsing import BoundedRoute
from openai_gateway.tools.request import tool_inputs

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/responses", response_model=dict[str, Any], responses=STREAMED)
async def create_response(body: ResponsesRequest, request: Request, gateway: GatewayDependency) -> Response:
    """Answer, in the form of OpenAI's newer API. Nothing is stored."""
    model = await gateway.check_model(body.model)
    generate = _generate_request(body)
    gateway.admit(request, generate, user=body.user, session_id=body.session_id)
    await gateway.bring_pictures(generate)
    writer = ResponseWriter(body, f"resp_{generate.request_id}", model, gateway.token_texts)
    chunks = gateway.client.generate(generate)
    if body.stream:
        return EventResponse(event_stream([chunks], [writer], writer.end), frame_error=writer.error)
    answers = await run_unless_disconnected(request.receive, collect([chunks]))
    await writer.write(answers.choices[0].chunks)
    writer.end(answers.usage)
    return Response(orjson.dumps(writer.response), media_type="application/json")


def _generate_request(body: ResponsesRequest) -> GenerateRequest:
    inputs = body.generation_inputs()
    return GenerateRequest(**inputs | tool_inputs(body.usable_tools, body.forced_tools, inputs))
