"""Token-level embeddings and sparse weights of encoders: vectors to be compared one by one, and lexical weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lmdeploy.model_metadata.token_heads import NO_SPARSE_LAYERS, TokenHeads
from openai_gateway.endpoints.embeddings.protocol import TokenCounts
from openai_gateway.endpoints.embeddings.vectors import (
    MAX_NUMBERS,
    PoolingParams,
    ServeContext,
    cannot,
    ids_of,
    made_of,
)
from openai_gateway.errors import ApiError
from openai_gateway.models import Chosen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MAX_WEIGHTS = 1 << 20  # above 0 in the sparse vectors of a response


async def token_vectors_of(
    ctx: ServeContext, inputs: Sequence[str] | Sequence[list[int]], params: PoolingParams
) -> tuple[list[NDArray[np.float32]], TokenCounts]:
    """Return the vectors of each text's tokens, ``[tokens, size]`` each, and how many tokens the texts have.

    Raises `ApiError` if the model is no encoder, or the texts have more tokens than a response may have vectors.
    """
    heads = _heads_of(ctx.chosen)
    ids = await ids_of(ctx.chosen, inputs, params)
    count, max_tokens = sum(map(len, ids)), MAX_NUMBERS // heads.size
    if count > max_tokens:
        name = ctx.chosen.model.name
        message = f"the texts of a request must have at most {max_tokens} tokens with the model `{name}`, got {count}"
        raise ApiError(400, message, param="input")
    return await made_of(ctx, ids, lambda _, states: heads.vectors_of(states))


async def token_weights_of(
    ctx: ServeContext, inputs: Sequence[str] | Sequence[list[int]], params: PoolingParams
) -> tuple[list[NDArray[np.float32]], TokenCounts]:
    """Return the weight of each token of each text, ``[tokens]`` each, and how many tokens the texts have.

    Raises `ApiError` if the model has no layer for weights.
    """
    heads = _heads_of(ctx.chosen)
    if not heads.weights:
        raise cannot(ctx.chosen, "has no weight for each token: its checkpoint has no sparse_linear.pt")
    ids = await ids_of(ctx.chosen, inputs, params)
    return await made_of(ctx, ids, lambda _, states: heads.weights_of(states))


async def sparse_vectors_of(ctx: ServeContext, inputs: Sequence[str], params: PoolingParams) -> list[dict[int, float]]:
    """Return the weights of each text by token of the vocabulary.

    Raises `ApiError` if the model has no layer for weights, or the vectors have more of them than a response may have.
    """
    heads = _heads_of(ctx.chosen)
    if not heads.makes_sparse_vectors:
        raise cannot(ctx.chosen, f"makes no sparse vectors: its checkpoint has {NO_SPARSE_LAYERS}")
    ids = await ids_of(ctx.chosen, inputs, params)
    count = 0

    def make(tokens: list[int], states: NDArray[np.float32]) -> dict[int, float]:
        nonlocal count
        found = heads.sparse_vector_of(tokens, states)
        count += len(found)
        if count > _MAX_WEIGHTS:
            message = f"the sparse vectors of a request must have at most {_MAX_WEIGHTS} weights"
            raise ApiError(400, message, param="inputs")
        return found

    made, _ = await made_of(ctx, ids, make)
    return made


def _heads_of(chosen: Chosen) -> TokenHeads:
    heads = chosen.model.token_heads
    if heads is None or heads.refusal:
        reason = heads.refusal if heads else "it is no encoder"
        raise cannot(chosen, f"makes no vectors of tokens: {reason}")
    return heads
