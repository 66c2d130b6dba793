"""``POST /v1/completions``: text completion without a chat template."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response

from lmdeploy.serve.client import GenerateRequest
from openai_gateway.endpoints.completions.prompts import Echo, whole_prompt
from openai_gateway.endpoints.completions.protocol import Completion, CompletionChoice, CompletionRequest
from openai_gateway.endpoints.completions.writer import CompletionWriter
from openai_gateway.errors import ApiError
from openai_gateway.gateway import GatewayDependency
from openai_gateway.generation.cancellation import run_unless_disconnected
from openai_gateway.generation.collecting import CollectedChoice, collect
from openai_gateway.generation.completions import completion_stream, dispatch_completion
from openai_gateway.generation.logprobs import completion_logprobs, prompt_logprobs, scored_tokens
from openai_gateway.generation.streaming import STREAMED
from openai_gateway.models import ServedModel
from openai_gateway.parsing import BoundedRoute

router = APIRouter(route_class=BoundedRoute)

_MAX_CHOICES = 512  # of all prompts together


@router.post("/v1/completions", response_model=Completion, responses=STREAMED)
async def create_completion(
    body: CompletionRequest, request: Request, gateway: GatewayDependency
) -> Completion | Response:
    """Continue one or several prompts, `n` choices each."""
    chosen = await gateway.choose(body.model, request)
    model = chosen.model
    prompts, choices = body.prompts, body.choices
    if len(prompts) * choices > _MAX_CHOICES:
        raise ApiError(400, f"n times the prompts must be at most {_MAX_CHOICES}", param="n", code="invalid_value")
    generates = [_generate_request(body, model, prompt) for prompt in prompts]
    if not body.stream:
        await gateway.bound_logprobs(model, *generates)
    echoes = [echo for prompt in prompts for echo in [await _echo(body, model, prompt)] * choices]
    streams = [await dispatch_completion(body, request, gateway, chosen, generate) for generate in generates]
    response_id, created = f"cmpl-{generates[0].request_id}", int(time.time())
    if body.stream:
        texts = model.token_texts if body.logprobs is not None else None
        frame = {"id": response_id, "object": "text_completion", "created": created, "model": chosen.name}
        return completion_stream(
            body, streams, frame, lambda frame, index: CompletionWriter(frame, index, body, echoes[index], texts)
        )
    responses = await run_unless_disconnected(request.receive, collect(streams, choices))
    made = [
        await _choice(body, model, index, echo, response)
        for index, (echo, response) in enumerate(zip(echoes, responses.choices, strict=True))
    ]
    return Completion(id=response_id, created=created, model=chosen.name, choices=made, usage=responses.usage)


def _generate_request(body: CompletionRequest, model: ServedModel, prompt: str | list[int]) -> GenerateRequest:
    inputs = body.generation_inputs(model.sampling_defaults) | {"max_new_tokens": body.token_limit}
    whole, stops = whole_prompt(model, prompt, body.suffix)
    inputs["stop_words"] = [*inputs["stop_words"], *stops]
    if isinstance(whole, str):
        return GenerateRequest(text_input=whole, **inputs)
    return GenerateRequest(input_ids=whole, **inputs)


async def _echo(body: CompletionRequest, model: ServedModel, prompt: str | list[int]) -> Echo:
    if not body.echo:
        return Echo("", [], body.skip_special_tokens is False)
    text = prompt if isinstance(prompt, str) else await model.token_texts.join(prompt, False)
    return Echo(text, [], body.skip_special_tokens is False)


async def _choice(
    body: CompletionRequest, model: ServedModel, index: int, echo: Echo, response: CollectedChoice
) -> CompletionChoice:
    logprobs = None
    echo.observe(response.chunks)
    texts, scores = model.token_texts, None
    if body.prompt_logprobs is not None:
        scores = await prompt_logprobs(echo.scored, texts, body.prompt_logprobs)
    if body.logprobs is not None:
        scored = [*(echo.scored if body.echo else ()), *scored_tokens(response.chunks)]
        logprobs = await completion_logprobs(scored, texts, body.logprobs, await echo.cursor(texts))
    return CompletionChoice(
        index=index,
        text=echo.text + response.text,
        logprobs=logprobs,
        prompt_logprobs=scores,
        finish_reason=response.finish_reason,
        stop_reason=response.chunks[-1].stop_reason,
        token_ids=response.token_ids if body.return_token_ids else None,
    )
