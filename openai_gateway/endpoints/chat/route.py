"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response

from lmdeploy.serve.client import GenerateRequest
from lmdeploy.templates.thinking import Thinking
from openai_gateway.answering.cancellation import run_unless_disconnected
from openai_gateway.answering.collecting import Answer, collect
from openai_gateway.answering.logprobs import chat_logprobs, prompt_logprobs, scored_prompt
from openai_gateway.answering.streaming import SLOT, STREAMED, EventResponse, EventTemplate, done, event_stream
from openai_gateway.endpoints.chat.protocol import ChatChoice, ChatCompletion, ChatCompletionRequest, ChatMessage
from openai_gateway.endpoints.chat.writer import ChatWriter
from openai_gateway.errors import ApiError
from openai_gateway.gateway import GatewayDependency
from openai_gateway.models import ServedModel
from openai_gateway.parsing import BoundedRoute
from openai_gateway.reasoning import ReasoningParser, Told, asked_for_thoughts, reasoning_parser
from openai_gateway.tools.calls import parser_for, tool_call
from openai_gateway.tools.parser import ToolCallParser, parse_with
from openai_gateway.tools.request import tool_inputs

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=STREAMED)
async def create_chat_completion(
    body: ChatCompletionRequest, request: Request, gateway: GatewayDependency
) -> ChatCompletion | Response:
    """Answer a conversation."""
    chosen = await gateway.choose(body.model, request)
    if body.thinking_budget is not None and not (chosen.model.thinking and chosen.model.thinking.end_ids):
        message = f"It is not known how the model `{chosen.name}` ends its thoughts; leave thinking_budget out."
        raise ApiError(400, message, param="thinking_budget")
    thinking = None if body.is_constrained else chosen.model.thinking
    generate = generate_request(body, thinking, chosen.model.may_hold_calls)
    gateway.admit(request, generate, chosen=chosen, user=body.user, session_id=body.session_id)
    await gateway.bring_pictures(generate)
    chunks = gateway.watched(request, chosen.model, chosen.model.client.generate(generate), body.choices)
    answer_id, created = f"chatcmpl-{generate.request_id}", int(time.time())
    if body.stream:
        frame: dict[str, Any] = {
            "id": answer_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": chosen.name,
        }
        usage_event = EventTemplate({**frame, "choices": [], "usage": SLOT}) if body.includes_usage else None
        if body.includes_usage:
            frame["usage"] = None  # as OpenAI: null in every chunk but the last
        writers = [_writer(body, chosen.model, frame, index, thinking) for index in range(body.choices)]
        end = done(usage_event, lambda: sum(writer.reasoning_tokens for writer in writers))
        return EventResponse(event_stream([chunks], writers, end))
    answers = await run_unless_disconnected(request.receive, collect([chunks], body.choices))
    choices = []
    for index, answer in enumerate(answers.choices):
        thoughts = thoughts_of(body, thinking)
        choice = await _choice(body, chosen.model, index, answer, thoughts)
        if body.return_token_ids:
            choice.token_ids = answer.token_ids
        choices.append(choice)
        if thoughts is not None:
            answers.usage.completion_tokens_details.reasoning_tokens += thoughts.token_count
    scores = None
    if body.prompt_logprobs is not None:
        scored = scored_prompt(answers.choices[0].chunks[0])
        scores = await prompt_logprobs(scored, chosen.model.token_texts, body.prompt_logprobs)
    return ChatCompletion(
        id=answer_id,
        created=created,
        model=chosen.name,
        choices=choices,
        usage=answers.usage,
        prompt_logprobs=scores,
    )


def generate_request(
    body: ChatCompletionRequest, thinking: Thinking | None, may_hold_calls: bool = False
) -> GenerateRequest:
    """Return what the engine is asked for a body, by a model that thinks so."""
    inputs = body.generation_inputs() | {"max_new_tokens": body.token_limit}
    if isinstance(body.messages, str):  # LMDeploy completes a plain string without a chat template
        return GenerateRequest(text_input=body.messages, **inputs)
    inputs |= tool_inputs(body.usable_tools, body.forced_tools, inputs, may_hold_calls=may_hold_calls)
    inputs["template_options"] = body.template_options
    inputs |= asked_for_thoughts(thinking, inputs, budget=body.thinking_budget)
    return GenerateRequest(messages=[message.for_template() for message in body.messages], **inputs)


def thoughts_of(body: ChatCompletionRequest, thinking: Thinking | None) -> ReasoningParser | None:
    """Return what finds the thoughts in an answer; None: there are none."""
    return None if isinstance(body.messages, str) else reasoning_parser(thinking, body.template_options)


def _call_parser(body: ChatCompletionRequest, model: ServedModel) -> ToolCallParser | None:
    return parser_for(body.usable_tools, is_forced=bool(body.forced_tools), notation=model.call_notation)


def _max_calls(body: ChatCompletionRequest) -> int | None:
    return 1 if body.parallel_tool_calls is False else None


def _writer(
    body: ChatCompletionRequest, model: ServedModel, frame: dict[str, Any], index: int, thinking: Thinking | None
) -> ChatWriter:
    texts = model.token_texts if body.logprobs else None
    return ChatWriter(
        frame,
        index,
        texts=texts,
        thoughts=thoughts_of(body, thinking),
        tells_thoughts=body.include_reasoning is not False,
        parser=_call_parser(body, model),
        max_calls=_max_calls(body),
        tells_tokens=bool(body.return_token_ids),
    )


async def _choice(
    body: ChatCompletionRequest, model: ServedModel, index: int, answer: Answer, thoughts: ReasoningParser | None
) -> ChatChoice:
    told = Told(content=answer.text) if thoughts is None else thoughts.whole_of(answer.chunks)
    reasoning = told.reasoning if told.reasoning and body.include_reasoning is not False else None
    message, reason = ChatMessage(content=told.content, reasoning_content=reasoning), answer.finish_reason
    logprobs = await chat_logprobs(answer.chunks, model.token_texts) if body.logprobs else None
    parser = _call_parser(body, model)
    if parser is not None and (found := parse_with(parser, told.content)).calls:
        calls = [tool_call(call) for call in found.calls[: _max_calls(body)]]
        message = ChatMessage(content=found.text or None, reasoning_content=reasoning, tool_calls=calls)
        if reason == "stop":
            return ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason="tool_calls")
    return ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason=reason)
