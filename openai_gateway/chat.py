"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response

from lmdeploy.serve.client import GenerateRequest
from openai_gateway.answers import collect
from openai_gateway.cancellation import run_unless_disconnected
from openai_gateway.gateway import GatewayDependency
from openai_gateway.protocol import ChatChoice, ChatCompletion, ChatCompletionRequest, ChatMessage
from openai_gateway.streaming import SLOT, Choice, ChoiceEvents, EventResponse, EventTemplate, event_stream

router = APIRouter()


@router.post("/v1/chat/completions", response_model=ChatCompletion)
async def create_chat_completion(
    body: ChatCompletionRequest, request: Request, gateway: GatewayDependency
) -> ChatCompletion | Response:
    """Answer a conversation."""
    model = await gateway.check_model(body.model)
    generate = _generate_request(body)
    chunks = gateway.client.generate(generate)
    answer_id, created = f"chatcmpl-{generate.request_id}", int(time.time())
    if body.stream:
        frame = {"id": answer_id, "object": "chat.completion.chunk", "created": created, "model": model}
        usage_event = EventTemplate({**frame, "choices": [], "usage": SLOT}) if body.includes_usage else None
        choice_events = _choice_events(frame, body.includes_usage)
        return EventResponse(event_stream([Choice(chunks, choice_events)], usage_event))
    answer = await run_unless_disconnected(request.receive, collect(chunks))
    message = ChatMessage(content=answer.text)
    choice = ChatChoice(index=0, message=message, finish_reason=answer.finish_reason)
    return ChatCompletion(id=answer_id, created=created, model=model, choices=[choice], usage=answer.usage)


def _generate_request(body: ChatCompletionRequest) -> GenerateRequest:
    inputs = body.generation_inputs()
    if isinstance(body.messages, str):  # LMDeploy completes a plain string without a chat template
        return GenerateRequest(text_input=body.messages, max_new_tokens=body.token_limit, **inputs)
    messages = [message.for_template() for message in body.messages]
    return GenerateRequest(messages=messages, max_new_tokens=body.token_limit, **inputs)


def _choice_events(frame: dict[str, Any], includes_usage: bool) -> ChoiceEvents:
    def chunk(delta: dict[str, str], finish_reason: str | None) -> EventTemplate:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        without_usage = {"usage": None} if includes_usage else {}  # as OpenAI: null in every chunk but the last
        return EventTemplate({**frame, "choices": [choice], **without_usage})

    opening = chunk({"role": SLOT, "content": ""}, None).fill("assistant")
    return ChoiceEvents(opening, text=chunk({"content": SLOT}, None), finish=chunk({}, SLOT))
