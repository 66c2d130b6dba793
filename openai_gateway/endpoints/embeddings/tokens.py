"""Texts to what an encoder makes of each of their tokens: vectors to be compared one by one, and lexical weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from fastapi import Request

from lmdeploy.model_metadata.token_heads import NO_SPARSE_LAYERS, TokenHeads
from lmdeploy.tokenizer_readers.framed import NO_FRAME
from openai_gateway.endpoints.embeddings.protocol import TokenCounts
from openai_gateway.endpoints.embeddings.vectors import (
    Wanted,
    prompt_of,
    rows_of,
    state_request,
    truncated,
)
from openai_gateway.errors import ApiError
from openai_gateway.gateway import Gateway
from openai_gateway.models import Chosen

if TYPE_CHECKING:
    from numpy.typing import NDArray

Made = TypeVar("Made")

_MOST_NUMBERS = 8 << 20  # of hidden states in memory at a time, and of vectors in a response
_MOST_WEIGHTS = 1 << 20  # above 0 in the sparse vectors of a response
_TOKENIZED_AT_A_TIME = 8


async def token_vectors_of(
    gateway: Gateway,
    request: Request,
    chosen: Chosen,
    inputs: Sequence[str] | Sequence[list[int]],
    user: str | None,
    wanted: Wanted,
) -> tuple[list[NDArray[np.float32]], TokenCounts]:
    """Return the vectors of each text's tokens, ``[tokens, size]`` each, and how many tokens the texts have.

    Raises
    ------
    ApiError
        The model is no encoder, or the texts have more tokens than a response may have vectors.
    """
    heads = _heads_of(chosen)
    ids = await _ids_of(chosen, inputs, wanted)
    count, most = sum(map(len, ids)), _MOST_NUMBERS // heads.size
    if count > most:
        message = (
            f"the texts of a request must have at most {most} tokens with the model `{chosen.model.name}`, got {count}"
        )
        raise ApiError(400, message, param="input")
    return await _made_of(gateway, request, chosen, ids, user, lambda _, states: heads.vectors_of(states))


async def token_weights_of(
    gateway: Gateway,
    request: Request,
    chosen: Chosen,
    inputs: Sequence[str] | Sequence[list[int]],
    user: str | None,
    wanted: Wanted,
) -> tuple[list[NDArray[np.float32]], TokenCounts]:
    """Return the weight of each token of each text, ``[tokens]`` each, and how many tokens the texts have.

    Raises
    ------
    ApiError
        The model has no layer for weights.
    """
    heads = _heads_of(chosen)
    if not heads.weights:
        message = (
            f"The model `{chosen.model.name}` has no weight for each token: its checkpoint has no sparse_linear.pt."
        )
        raise ApiError(400, message, param="model")
    ids = await _ids_of(chosen, inputs, wanted)
    return await _made_of(gateway, request, chosen, ids, user, lambda _, states: heads.weights_of(states))


async def sparse_vectors_of(
    gateway: Gateway, request: Request, chosen: Chosen, inputs: Sequence[str], wanted: Wanted
) -> list[dict[int, float]]:
    """Return the weights of each text by token of the vocabulary.

    Raises
    ------
    ApiError
        The model has no layer for weights, or the vectors have more of them than a response may have.
    """
    heads = _heads_of(chosen)
    if not heads.makes_sparse_vectors:
        message = f"The model `{chosen.model.name}` makes no sparse vectors: its checkpoint has {NO_SPARSE_LAYERS}."
        raise ApiError(400, message, param="model")
    ids = await _ids_of(chosen, inputs, wanted)
    count = 0

    def make(tokens: list[int], states: NDArray[np.float32]) -> dict[int, float]:
        nonlocal count
        found = heads.sparse_vector_of(tokens, states)
        count += len(found)
        if count > _MOST_WEIGHTS:
            message = f"the sparse vectors of a request must have at most {_MOST_WEIGHTS} weights"
            raise ApiError(400, message, param="inputs")
        return found

    made, _ = await _made_of(gateway, request, chosen, ids, None, make)
    return made


def _heads_of(chosen: Chosen) -> TokenHeads:
    heads = chosen.model.token_heads
    if heads is None or heads.refusal:
        reason = heads.refusal if heads else "it is no encoder"
        raise ApiError(400, f"The model `{chosen.model.name}` makes no vectors of tokens: {reason}.", param="model")
    return heads


async def _ids_of(chosen: Chosen, inputs: Sequence[str] | Sequence[list[int]], wanted: Wanted) -> list[list[int]]:
    pooling = chosen.model.pooling
    prompt = prompt_of(chosen, pooling, wanted) if pooling is not None else ""
    frame = pooling.frame if pooling is not None else NO_FRAME
    some = asyncio.Semaphore(_TOKENIZED_AT_A_TIME)

    async def ids_of(text: str | list[int]) -> list[int]:
        whole = prompt + text if isinstance(text, str) else text
        async with some:
            kept = await truncated(chosen, frame, whole) if wanted.truncate else whole
            return await chosen.model.client.tokenize(text=kept) if isinstance(kept, str) else list(kept)

    return await asyncio.gather(*map(ids_of, inputs))


async def _made_of(
    gateway: Gateway,
    request: Request,
    chosen: Chosen,
    ids: Sequence[list[int]],
    user: str | None,
    make: Callable[[list[int], NDArray[np.float32]], Made],
) -> tuple[list[Made], TokenCounts]:
    """Return what `make` makes of the tokens and hidden states of each text; few states are in memory at a time."""
    size = _heads_of(chosen).hidden_size
    made: list[Made] = []
    while len(made) < len(ids):
        some = ids[len(made) :]
        ends = np.cumsum([len(each) for each in some]) * size
        some = some[: max(1, int(np.searchsorted(ends, _MOST_NUMBERS, "right")))]
        asked = [state_request(each, of_tokens=True) for each in some]
        rows, _ = await rows_of(gateway, request, chosen, asked, user)
        states = [np.frombuffer(row, dtype="<f4").reshape(-1, size) for row in rows]
        made += await asyncio.to_thread(_each, make, some, states)
    tokens = sum(map(len, ids))
    return made, TokenCounts(prompt_tokens=tokens, total_tokens=tokens)


def _each(
    make: Callable[[list[int], NDArray[np.float32]], Made],
    ids: Sequence[list[int]],
    states: Sequence[NDArray[np.float32]],
) -> list[Made]:
    return [make(*each) for each in zip(ids, states, strict=True)]
