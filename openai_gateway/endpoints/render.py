"""``/v1/chat/completions/render``, ``/v1/completions/render``: the prompt tokens of a request, without generation.

Routers that know which replica has computed which prefix ask for them.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel

from openai_gateway.endpoints.chat.protocol import ChatCompletionRequest
from openai_gateway.endpoints.completions.prompts import whole_prompt
from openai_gateway.endpoints.completions.protocol import CompletionRequest
from openai_gateway.gateway import GatewayDependency
from openai_gateway.parsing import BoundedRoute

router = APIRouter(route_class=BoundedRoute)


class RenderedPrompt(BaseModel):
    """A prompt as the engine gets it."""

    request_id: str
    model: str
    token_ids: list[int]


@router.post("/v1/chat/completions/render")
async def render_chat(body: ChatCompletionRequest, request: Request, gateway: GatewayDependency) -> RenderedPrompt:
    """Return the tokens of a conversation, with the chat template and the tools applied. Nothing is generated."""
    chosen = await gateway.choose(body.model, request)
    if isinstance(body.messages, str):
        ids = await chosen.model.client.tokenize(text=body.messages)
    else:
        messages = [message.for_template() for message in body.messages]
        ids = await chosen.prompt_ids(messages, body.usable_tools, body.template_options)
    return RenderedPrompt(request_id=request.scope["lmdeploy.request_id"], model=chosen.name, token_ids=ids)


@router.post("/v1/completions/render")
async def render_completion(
    body: CompletionRequest, request: Request, gateway: GatewayDependency
) -> list[RenderedPrompt]:
    """Return the tokens of each prompt. Nothing is generated."""
    chosen = await gateway.choose(body.model, request)
    prompts = [whole_prompt(chosen.model, prompt, body.suffix)[0] for prompt in body.prompts]
    return [
        RenderedPrompt(
            request_id=request.scope["lmdeploy.request_id"],
            model=chosen.name,
            token_ids=await chosen.model.client.tokenize(text=prompt) if isinstance(prompt, str) else prompt,
        )
        for prompt in prompts
    ]
