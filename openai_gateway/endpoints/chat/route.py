"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time

import orjson
from fastapi import APIRouter, Request, Response

from openai_gateway.endpoints.chat.protocol import ChatChoice, ChatCompletion, ChatCompletionRequest, ChatMessage
from openai_gateway.endpoints.chat.writer import ChatWriter, reason_of
from openai_gateway.errors import ApiError
from openai_gateway.gateway import GatewayDependency
from openai_gateway.generation.cancellation import run_unless_disconnected
from openai_gateway.generation.collecting import collect
from openai_gateway.generation.completions import completion_stream, dispatch_completion
from openai_gateway.generation.conversation import Conversation
from openai_gateway.generation.logprobs import encoded_chat_logprobs, prompt_logprobs, scored_prompt
from openai_gateway.generation.response import WholeResponse
from openai_gateway.generation.streaming import STREAMED
from openai_gateway.parsing import BoundedRoute
from openai_gateway.protocol.tools import FunctionCall, ToolCall
from openai_gateway.tools.events import call_id

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
    conversation = Conversation(body, chosen.model, gateway)
    generate = conversation.request(body.generation_inputs(chosen.model.sampling_defaults))
    if not body.stream:
        await gateway.bound_logprobs(chosen.model, generate)
    chunks = await dispatch_completion(body, request, gateway, chosen, generate)
    response_id, created = f"chatcmpl-{generate.request_id}", int(time.time())
    if body.stream:
        texts = chosen.model.token_texts if body.logprobs else None
        frame = {"id": response_id, "object": "chat.completion.chunk", "created": created, "model": chosen.name}
        return completion_stream(
            body, [chunks], frame, lambda frame, index: ChatWriter(frame, index, body, conversation.machine(), texts)
        )
    responses = await run_unless_disconnected(request.receive, collect([chunks], body.choices))
    choices = []
    for index, response in enumerate(responses.choices):
        machine = conversation.machine()
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


def _choice(body: ChatCompletionRequest, index: int, whole: WholeResponse) -> ChatChoice:
    # Not validated, which would complete the arguments of a call that was cut before they began.
    functions = [
        FunctionCall.model_construct(name=call.name, arguments=call.arguments) for call in whole.calls.values()
    ]
    message = ChatMessage(
        content=whole.text or (None if functions else ""),
        reasoning_content=(whole.reasoning or None) if body.include_reasoning is not False else None,
    )
    if functions and body.functions:
        message.function_call = functions[0]
    elif functions:
        message.tool_calls = [ToolCall(id=call_id(), function=function) for function in functions]
    return ChatChoice(
        index=index,
        message=message,
        finish_reason=reason_of(whole.ended, body.reason_of_calls),
        stop_reason=whole.ended.stop_reason,
    )
