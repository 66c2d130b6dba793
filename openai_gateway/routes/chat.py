"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response

from lmdeploy.serve.client import GenerateRequest
from openai_gateway.answers import Answer, collect
from openai_gateway.cancellation import run_unless_disconnected
from openai_gateway.gateway import Gateway, GatewayDependency
from openai_gateway.logprobs import chat_logprobs
from openai_gateway.protocol.chat import ChatChoice, ChatCompletion, ChatCompletionRequest, ChatMessage
from openai_gateway.streaming import SLOT, STREAMED, EventResponse, EventTemplate, done, event_stream
from openai_gateway.tools.calls import tool_call
from openai_gateway.tools.forced import call_format
from openai_gateway.tools.parser import ToolCallParser, parse
from openai_gateway.writers.chat import ChatWriter

router = APIRouter()


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=STREAMED)
async def create_chat_completion(
    body: ChatCompletionRequest, request: Request, gateway: GatewayDependency
) -> ChatCompletion | Response:
    """Answer a conversation."""
    model = await gateway.check_model(body.model)
    generate = _generate_request(body)
    gateway.admit(request, generate, user=body.user, session_id=body.session_id)
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
    if tools := body.usable_tools:
        inputs["tools"] = [tool.for_template() for tool in tools]
        if inputs["skip_special_tokens"] is None:  # in two families the marks around calls are special tokens
            inputs["skip_special_tokens"] = False
    if forced := body.forced_tools:
        inputs["response_format"] = call_format(forced)
    return GenerateRequest(messages=[message.for_template() for message in body.messages], **inputs)


def _tool_names(body: ChatCompletionRequest) -> frozenset[str]:
    return frozenset(tool.function.name for tool in body.usable_tools)


def _max_calls(body: ChatCompletionRequest) -> int | None:
    return 1 if body.parallel_tool_calls is False else None


def _writer(body: ChatCompletionRequest, gateway: Gateway, frame: dict[str, Any], index: int) -> ChatWriter:
    names = _tool_names(body)
    texts = gateway.token_texts if body.logprobs else None
    parser = ToolCallParser(names) if names else None
    return ChatWriter(frame, index, texts=texts, parser=parser, max_calls=_max_calls(body))


async def _choice(body: ChatCompletionRequest, gateway: Gateway, index: int, answer: Answer) -> ChatChoice:
    names = _tool_names(body)
    message, reason = ChatMessage(content=answer.text), answer.finish_reason
    logprobs = await chat_logprobs(answer.chunks, gateway.token_texts) if body.logprobs else None
    if names and (found := parse(answer.text, names)).calls:
        calls = [tool_call(call) for call in found.calls[: _max_calls(body)]]
        message = ChatMessage(content=found.text or None, tool_calls=calls)
        if reason == "stop":
            return ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason="tool_calls")
    return ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason=reason)
