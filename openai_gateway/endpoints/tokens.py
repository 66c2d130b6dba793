"""Text to tokens and back: ``/tokenize``, ``/detokenize``, ``/v1/encode``."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, model_validator

from openai_gateway.gateway import GatewayDependency
from openai_gateway.models import ServedModel
from openai_gateway.parsing import BoundedRoute
from openai_gateway.protocol.fields import MAX_INT32, AnyText, FieldError, Strict, Text
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


class TokenizeRequest(Strict):
    """Body of ``POST /tokenize``: a prompt, or messages."""

    model: Text | None = None
    prompt: AnyText | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None

    @model_validator(mode="after")
    def _one_prompt(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise FieldError("prompt", "prompt or messages is required, and not both")
        return self


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
    add_bos = body.add_bos is not False
    model = await gateway.default_model()
    if isinstance(body.input, str):
        ids = await _encode(model, body.input, bool(body.do_preprocess), add_bos)
        return EncodeResponse(input_ids=ids, length=len(ids))
    some = asyncio.Semaphore(_AT_A_TIME)

    async def one(text: str) -> list[int]:
        async with some:
            return await _encode(model, text, bool(body.do_preprocess), add_bos)

    many = await asyncio.gather(*(one(text) for text in body.input))
    return EncodeResponse(input_ids=list(many), length=[len(ids) for ids in many])


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, request: Request, gateway: GatewayDependency) -> TokenizeResponse:
    """Return the tokens of a prompt, or of a conversation with the chat template applied."""
    chosen = await gateway.choose(body.model, request)
    model = chosen.model
    if body.messages is not None:
        messages = [message.for_template() for message in body.messages]
        ids = await model.client.tokenize(messages=messages, adapter=chosen.adapter)
    else:
        ids = await _encode(model, body.prompt or "", False, body.add_special_tokens is not False)
    return TokenizeResponse(tokens=ids, count=len(ids))


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, request: Request, gateway: GatewayDependency) -> DetokenizeResponse:
    """Return the text of tokens."""
    model = (await gateway.choose(body.model, request)).model
    text = await model.token_texts.join(body.tokens, bool(body.skip_special_tokens)) if body.tokens else ""
    return DetokenizeResponse(prompt=text)


async def _encode(model: ServedModel, text: str, do_preprocess: bool, add_bos: bool) -> list[int]:
    if do_preprocess:
        return await model.client.tokenize(messages=[{"role": "user", "content": text}])
    if not text:
        return [bos] if add_bos and (bos := await model.bos_token_id()) is not None else []
    ids = await model.client.tokenize(text=text)
    return ids[1:] if not add_bos and ids[:1] == [await model.bos_token_id()] else ids
