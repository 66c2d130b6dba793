"""Texts to vectors, with a model that is made for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import Request

from lmdeploy.serve.client import GenerateRequest
from openai_gateway.endpoints.embeddings.protocol import TokenCounts
from openai_gateway.errors import ApiError
from openai_gateway.gateway import Gateway
from openai_gateway.generation.cancellation import run_unless_disconnected
from openai_gateway.generation.collecting import collect
from openai_gateway.models import Chosen

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AT_A_TIME = 64  # texts of a request in the engine


async def vectors_of(
    gateway: Gateway,
    request: Request,
    chosen: Chosen,
    inputs: Sequence[str] | Sequence[list[int]],
    user: str | None,
    dimensions: int | None = None,
) -> tuple[NDArray[np.float32], TokenCounts]:
    """Return the vector of each text, as its model wants it made, and how many tokens the texts have.

    Parameters
    ----------
    inputs
        Texts, or their tokens.
    dimensions
        How many numbers of each are kept, as models allow that were trained so (Kusupati et al., 2022); such a vector
        has length 1. None: all.

    Raises
    ------
    ApiError
        The model is not made for embeddings, or its vectors are shorter.
    """
    model, pooling = chosen.model, chosen.model.pooling
    if pooling is None or pooling.refusal:
        reason = pooling.refusal if pooling else "its checkpoint has no modules.json"
        raise ApiError(400, f"The model `{model.name}` makes no embeddings: {reason}.", param="model")
    vectors, usage = await states_of(gateway, request, chosen, [state_request(each) for each in inputs], user)
    if dimensions is not None and dimensions > vectors.shape[1]:
        message = f"dimensions must be at most {vectors.shape[1]} with the model `{model.name}`, got {dimensions}"
        raise ApiError(400, message, param="dimensions")
    if pooling.normalizes or dimensions is not None:
        vectors = unit(vectors[:, :dimensions])
    return vectors, usage


async def states_of(
    gateway: Gateway, request: Request, chosen: Chosen, generates: Sequence[GenerateRequest], user: str | None
) -> tuple[NDArray[np.float32], TokenCounts]:
    """Return the hidden state of each prompt's last token, ``[prompts, hidden size]``, and how many tokens they have.

    Parameters
    ----------
    generates
        As `state_request` makes them.
    """
    for generate in generates:
        gateway.admit(request, generate, chosen=chosen, user=user)
    rows: list[bytes] = []
    tokens, model = 0, chosen.model
    for begin in range(0, len(generates), _AT_A_TIME):
        some = generates[begin : begin + _AT_A_TIME]
        streams = [gateway.watched(request, model, model.client.generate(generate)) for generate in some]
        responses = await run_unless_disconnected(request.receive, collect(streams))
        rows += [response.chunks[-1].embedding for response in responses.choices]
        tokens += responses.usage.prompt_tokens
    states = np.frombuffer(b"".join(rows), dtype="<f4").reshape(len(rows), -1)
    return states, TokenCounts(prompt_tokens=tokens, total_tokens=tokens)


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors of length 1; one of length 0 stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    units: NDArray[np.float32] = vectors / np.where(lengths > 0, lengths, 1)
    return units


def state_request(prompt: str | list[Any]) -> GenerateRequest:
    """Return the request for what a model makes of a text, tokens, or a conversation after which nobody speaks."""
    fields: dict[str, Any] = {"stream": False, "max_new_tokens": 0, "output_embedding": True}
    if isinstance(prompt, str):
        return GenerateRequest(text_input=prompt, **fields)
    if isinstance(prompt[0], int):
        return GenerateRequest(input_ids=prompt, **fields)
    reported = {"add_generation_prompt": False}
    return GenerateRequest(messages=prompt, template_options=reported, **fields)
