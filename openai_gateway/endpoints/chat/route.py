"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from lmdeploy.serve.client import GenerateRequest
from openai_gateway.endpoints.chat.protocol import ChatChoice, ChatCompletion, ChatCompletionRequest, ChatMessage
from openai_gateway.endpoints.chat.writer import ChatWriter, reason_of
from openai_gateway.errors import ApiError
from openai_gateway.gateway import Gateway, GatewayDependency
from openai_gateway.generation.cancellation import run_unless_disconnected
from openai_gateway.generation.collecting import collect
from openai_gateway.generation.counting import CountingWriter
from openai_gateway.generation.logprobs import encoded_chat_logprobs, prompt_logprobs, scored_prompt
from openai_gateway.generation.response import ResponseMachine, WholeResponse, response_machine
from openai_gateway.generation.streaming import SLOT, STREAMED, EventResponse, EventTemplate, done, event_stream
from openai_gateway.generation.watching import cut_if_too_long, with_stop_strings
from openai_gateway.models import ServedModel
from openai_gateway.parsing import BoundedRoute
from openai_gateway.reasoning import requests_reasoning
from openai_gateway.tools.calls import tool_call
from openai_gateway.tools.request import tool_inputs

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=STREAMED)
async def create_chat_completion(
    body: ChatCompletionRequest, request: Request, gateway: GatewayDependency
) -> ChatCompletion | Response:
    """Answer a conversation."""
    chosen = await gateway.choose(body.model, request)
    if body.thinking_budget is not None and not (chosen.model.thinking and chosen.model.thinking.end_ids):
        message = f"It is not known how the model `{chosen.name}` ends its reasoning; leave thinking_budget out."
        raise ApiError(400, message, param="thinking_budget")
    generate = generate_request(body, chosen.model)
    gateway.admit(request, generate, chosen=chosen, user=body.user, session_id=body.session_id)
    if not body.stream:
        await gateway.bound_logprobs(chosen.model, generate)
    await gateway.bring_images(request, chosen.model, generate)
    chunks = gateway.watched(request, chosen.model, chosen.model.client.generate(generate), body.choices)
    if body.shown_stops:
        chunks = with_stop_strings(chunks, body.shown_stops)
    if body.is_of_lmdeploy:
        chunks = cut_if_too_long(chunks, body.choices)
    response_id, created = f"chatcmpl-{generate.request_id}", int(time.time())
    if body.stream:
        frame: dict[str, Any] = {
            "id": response_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": chosen.name,
        }
        usage_event = EventTemplate({**frame, "choices": [], "usage": SLOT}) if body.includes_usage else None
        if body.includes_usage:
            frame["usage"] = None  # as OpenAI: null in every chunk but the last
        writers = [
            _writer(body, chosen.model, frame, index, machine_of(body, chosen.model, gateway))
            for index in range(body.choices)
        ]
        end = done(usage_event, lambda: sum(writer.machine.reasoning_tokens for writer in writers))
        counting = [CountingWriter(writer) for writer in writers] if body.counts_always else writers
        return EventResponse(event_stream([chunks], counting, end))
    responses = await run_unless_disconnected(request.receive, collect([chunks], body.choices))
    choices = []
    for index, response in enumerate(responses.choices):
        machine = machine_of(body, chosen.model, gateway)
        choice = _choice(body, index, WholeResponse().add(machine.feed(response.chunks)))
        if body.return_token_ids:
            choice.token_ids = response.token_ids
        choices.append(choice)
        responses.usage.completion_tokens_details.reasoning_tokens += machine.reasoning_tokens
    scores = None
    if body.prompt_logprobs is not None:
        scored = scored_prompt(responses.choices[0].chunks[0])
        scores = await prompt_logprobs(scored, chosen.model.token_texts, body.prompt_logprobs)
    completion = ChatCompletion(
        id=response_id,
        created=created,
        model=chosen.name,
        choices=choices,
        usage=responses.usage,
        prompt_logprobs=scores,
    )
    if not body.logprobs:
        return completion
    content = completion.model_dump(mode="json")
    for choice_content, response in zip(content["choices"], responses.choices, strict=True):
        choice_content["logprobs"] = await encoded_chat_logprobs(response.chunks, chosen.model.token_texts)
    return Response(orjson.dumps(content), media_type="application/json")


def generate_request(body: ChatCompletionRequest, model: ServedModel) -> GenerateRequest:
    """Return what the engine is asked for a body."""
    inputs = body.generation_inputs(model.sampling_defaults) | {"max_new_tokens": body.token_limit}
    if isinstance(body.messages, str):  # LMDeploy completes a plain string without a chat template
        return GenerateRequest(text_input=body.messages, **inputs)
    thinking = None if body.continues else model.thinking
    held = tool_inputs(
        body.usable_tools,
        body.forced_tools,
        inputs,
        model.tool_call_format,
        several=body.may_call_several,
        thinking=thinking,
    )
    inputs |= held
    inputs["template_options"] = body.template_options
    inputs["messages"] = [message.for_template() for message in body.messages]
    return GenerateRequest(
        **inputs
        | requests_reasoning(
            thinking,
            inputs,
            is_call="response_format" in held,
            budget=body.thinking_budget,
        )
    )


def machine_of(body: ChatCompletionRequest, model: ServedModel, gateway: Gateway) -> ResponseMachine:
    """Return the response state machine of one choice."""
    if isinstance(body.messages, str):
        return ResponseMachine()
    return response_machine(
        gateway,
        model,
        None if body.continues else model.thinking,
        body.template_options,
        [{"role": body.messages[-1].role}],
        body.usable_tools,
        is_forced=bool(body.forced_tools),
        max_calls=1 if body.parallel_tool_calls is False or body.functions else None,
    )


def _writer(
    body: ChatCompletionRequest, model: ServedModel, frame: dict[str, Any], index: int, machine: ResponseMachine
) -> ChatWriter:
    return ChatWriter(
        frame,
        index,
        machine,
        texts=model.token_texts if body.logprobs else None,
        reports_reasoning=body.include_reasoning is not False,
        reports_tokens=bool(body.return_token_ids),
        reason_of_calls=body.reason_of_calls,
        has_whole_deltas=body.is_of_lmdeploy,
    )


def _choice(body: ChatCompletionRequest, index: int, whole: WholeResponse) -> ChatChoice:
    calls = [tool_call(call) for call in whole.calls.values()]
    message = ChatMessage(
        content=whole.text or (None if calls else ""),
        reasoning_content=(whole.reasoning or None) if body.include_reasoning is not False else None,
    )
    if calls and body.functions:
        message.function_call = calls[0].function
    elif calls:
        message.tool_calls = calls
    return ChatChoice(
        index=index,
        message=message,
        finish_reason=reason_of(whole.ended, body.reason_of_calls),
        stop_reason=whole.ended.stop_reason,
    )
