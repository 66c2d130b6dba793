"""Tokenization endpoints: ``/tokenize``, ``/detokenize``, ``/v1/encode``."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from openai_gateway.endpoints.chat.protocol import RenderingFields
from openai_gateway.gateway import GatewayDependency
from openai_gateway.models import ServedModel
from openai_gateway.parsing import BoundedRoute
from openai_gateway.protocol.fields import MAX_INT32, AnyText, Strict, Text, exactly_one
from openai_gateway.protocol.messages import Messages

router = APIRouter(route_class=BoundedRoute)

_AT_A_TIME = 8  # texts being tokenized for one request


class EncodeRequest(Strict):
    """Body of ``POST /v1/encode``."""

    input: AnyText | Annotated[list[AnyText], Field(min_length=1, max_length=1024, fail_fast=True)]
    do_preprocess: bool | None = None
    add_bos: bool | None = None


class EncodeResponse(BaseModel):
    """Token ids and their number; lists of them for a list of texts."""

    input_ids: list[int] | list[list[int]]
    length: int | list[int]


class TokenizeRequest(RenderingFields):
    """Body of ``POST /tokenize``: a prompt, or what a chat completion is rendered from."""

    model: Text | None = None
    prompt: AnyText | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None

    _one_prompt = exactly_one("prompt", "messages")


class TokenizeResponse(BaseModel):
    """Tokens of a prompt."""

    tokens: list[int]
    count: int


class DetokenizeRequest(Strict):
    """Body of ``POST /detokenize``."""

    model: Text | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, le=MAX_INT32)]], Field(max_length=1_000_000, fail_fast=True)]
    skip_special_tokens: bool | None = None


class DetokenizeResponse(BaseModel):
    """Text of tokens."""

    prompt: str


@router.post("/v1/encode")
async def encode(body: EncodeRequest, gateway: GatewayDependency) -> EncodeResponse:
    """Return the token ids of one or several texts."""
    model = await gateway.default_model()
    if isinstance(body.input, str):
        ids = await _encode(model, body.input, body)
        return EncodeResponse(input_ids=ids, length=len(ids))
    some = asyncio.Semaphore(_AT_A_TIME)

    async def one(text: str) -> list[int]:
        async with some:
            return await _encode(model, text, body)

    many = await asyncio.gather(*(one(text) for text in body.input))
    return EncodeResponse(input_ids=list(many), length=[len(ids) for ids in many])


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, request: Request, gateway: GatewayDependency) -> TokenizeResponse:
    """Return the tokens of a prompt, or of a conversation with the chat template applied."""
    chosen = await gateway.choose(body.model, request)
    if body.messages is None:
        ids = await chosen.model.client.tokenize(
            text=body.prompt, add_special_tokens=body.add_special_tokens is not False
        )
    else:
        ids = await chosen.model.client.tokenize(
            messages=[message.for_template() for message in body.messages],
            tools=[tool.for_template() for tool in body.usable_tools],
            template_options=body.template_options,
            adapter=chosen.adapter,
            add_special_tokens=body.add_special_tokens,
        )
    return TokenizeResponse(tokens=ids, count=len(ids))


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, request: Request, gateway: GatewayDependency) -> DetokenizeResponse:
    """Return the text of tokens."""
    model = (await gateway.choose(body.model, request)).model
    text = await model.token_texts.join(body.tokens, bool(body.skip_special_tokens)) if body.tokens else ""
    return DetokenizeResponse(prompt=text)


async def _encode(model: ServedModel, text: str, body: EncodeRequest) -> list[int]:
    if body.do_preprocess:
        messages = [{"role": "user", "content": text}]
        return await model.client.tokenize(messages=messages, add_special_tokens=body.add_bos)
    return await model.client.tokenize(text=text, add_special_tokens=body.add_bos is not False)
