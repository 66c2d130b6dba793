"""``POST /v1/completions``: text goes on without a chat template."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Request, Response

from lmdeploy.serve.client import GenerateRequest
from openai_gateway.answers import Answer, collect, total
from openai_gateway.cancellation import run_unless_disconnected
from openai_gateway.gateway import Gateway, GatewayDependency
from openai_gateway.protocol import Completion, CompletionChoice, CompletionRequest
from openai_gateway.streaming import SLOT, Choice, ChoiceEvents, EventResponse, EventTemplate, event_stream

router = APIRouter()


@router.post("/v1/completions", response_model=Completion)
async def create_completion(
    body: CompletionRequest, request: Request, gateway: GatewayDependency
) -> Completion | Response:
    """Continue one or several prompts, one choice each."""
    model = await gateway.check_model(body.model)
    inputs = body.generation_inputs()
    generates = [
        GenerateRequest(text_input=prompt, max_new_tokens=body.token_limit, **inputs) for prompt in body.prompts
    ]
    answer_id, created = f"cmpl-{generates[0].request_id}", int(time.time())
    if body.stream:
        frame = {"id": answer_id, "object": "text_completion", "created": created, "model": model}
        choices = [
            Choice(gateway.client.generate(generate), _choice_events(frame, index, body.includes_usage))
            for index, generate in enumerate(generates)
        ]
        usage_event = EventTemplate({**frame, "choices": [], "usage": SLOT}) if body.includes_usage else None
        return EventResponse(event_stream(choices, usage_event))
    answers = await run_unless_disconnected(request.receive, _collect_all(gateway, generates))
    made = [
        CompletionChoice(index=index, text=answer.text, finish_reason=answer.finish_reason)
        for index, answer in enumerate(answers)
    ]
    return Completion(
        id=answer_id, created=created, model=model, choices=made, usage=total(answer.usage for answer in answers)
    )


async def _collect_all(gateway: Gateway, generates: list[GenerateRequest]) -> list[Answer]:
    """Return the answers to all requests, run at the same time; the first failure cancels the others."""
    tasks = [asyncio.ensure_future(collect(gateway.client.generate(generate))) for generate in generates]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _choice_events(frame: dict[str, Any], index: int, includes_usage: bool) -> ChoiceEvents:
    def chunk(text: str, finish_reason: str | None) -> EventTemplate:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
        without_usage = {"usage": None} if includes_usage else {}
        return EventTemplate({**frame, "choices": [choice], **without_usage})

    return ChoiceEvents(opening=b"", text=chunk(SLOT, None), finish=chunk("", SLOT))
