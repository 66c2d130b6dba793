"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response

from lmdeploy.serve.client import GenerateRequest
from openai_gateway.answering.cancellation import run_unless_disconnected
from openai_gateway.answering.collecting import Answer, collect
from openai_gateway.answering.logprobs import chat_logprobs
from openai_gateway.answering.streaming import SLOT, STREAMED, EventResponse, EventTemplate, done, event_stream
from openai_gateway.endpoints.chat.protocol import ChatChoice, ChatCompletion, ChatCompletionRequest, ChatMessage
from openai_gateway.endpoints.chat.writer import ChatWriter
from openai_gateway.gateway import Gateway, GatewayDependency
from openai_gateway.parsing import BoundedRoute
from openai_gateway.tools.calls import names_of, parser_for, tool_call
from openai_gateway.tools.parser import parse
from openai_gateway.tools.request import tool_inputs

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=STREAMED)
async def create_chat_completion(
    body: ChatCompletionRequest, request: Request, gateway: GatewayDependency
) -> ChatCompletion | Response:
    """Answer a conversation."""
    model = await gateway.check_model(body.model)
    generate = _generate_request(body)
    gateway.admit(request, generate, user=body.user, session_id=body.session_id)
    await gateway.bring_pictures(generate)
    chunks = gateway.client.generate(generate)
    answer_id, created = f"chatcmpl-{generate.request_id}", int(time.time())
    if body.stream:
        frame: dict[str, Any] = {"id": answer_id, "object": "chat.completion.chunk", "created": created, "model": model}
        usage_event = EventTemplate({**frame, "choices": [], "usage": SLOT}) if body.includes_usage else None
        if body.includes_usage:
            frame["usage"] = None  # as OpenAI: null in every chunk but the last
        writers = [_writer(body, gateway, frame, index) for index in range(body.choices)]
        return EventResponse(event_stream([chunks], writers, done(usage_event)))
    answers = await run_unless_disconnected(request.receive, collect([chunks], body.choices))
    choices = [await _choice(body, gateway, index, answer) for index, answer in enumerate(answers.choices)]
    return ChatCompletion(id=answer_id, created=created, model=model, choices=choices, usage=answers.usage)


def _generate_request(body: ChatCompletionRequest) -> GenerateRequest:
    inputs = body.generation_inputs() | {"max_new_tokens": body.token_limit}
    if isinstance(body.messages, str):  # LMDeploy completes a plain string without a chat template
        return GenerateRequest(text_input=body.messages, **inputs)
    inputs |= tool_inputs(body.usable_tools, body.forced_tools, inputs)
    return GenerateRequest(messages=[message.for_template() for message in body.messages], **inputs)


def _max_calls(body: ChatCompletionRequest) -> int | None:
    return 1 if body.parallel_tool_calls is False else None


def _writer(body: ChatCompletionRequest, gateway: Gateway, frame: dict[str, Any], index: int) -> ChatWriter:
    texts = gateway.token_texts if body.logprobs else None
    parser = parser_for(body.usable_tools, is_forced=bool(body.forced_tools))
    return ChatWriter(frame, index, texts=texts, parser=parser, max_calls=_max_calls(body))


async def _choice(body: ChatCompletionRequest, gateway: Gateway, index: int, answer: Answer) -> ChatChoice:
    message, reason = ChatMessage(content=answer.text), answer.finish_reason
    logprobs = await chat_logprobs(answer.chunks, gateway.token_texts) if body.logprobs else None
    if (tools := body.usable_tools) and (found := parse(answer.text, names_of(tools))).calls:
        calls = [tool_call(call) for call in found.calls[: _max_calls(body)]]
        message = ChatMessage(content=found.text or None, tool_calls=calls)
        if reason == "stop":
            return ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason="tool_calls")
    return ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason=reason)
