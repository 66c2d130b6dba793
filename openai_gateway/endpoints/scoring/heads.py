"""Scores and classes of texts and pairs, by a head or by the cosine of embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lmdeploy.model_metadata.pooling import unit
from lmdeploy.model_metadata.score_head import ScoreHead, judging_prompt
from openai_gateway.endpoints.embeddings.protocol import TokenCounts
from openai_gateway.endpoints.embeddings.vectors import (
    PoolingParams,
    ServeContext,
    cannot,
    first_tokens,
    state_request,
    states_of,
    truncated,
    vectors_of,
)
from openai_gateway.endpoints.scoring.protocol import PairSettings
from openai_gateway.errors import ApiError
from openai_gateway.models import Chosen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lmdeploy.serve.client import GenerateRequest

_AT_A_TIME = 8  # texts being tokenized for one request
_MAX_REPEATED = 8 << 20  # characters of a query, in all prompts it is part of


async def scores_of_pairs(
    ctx: ServeContext, firsts: Sequence[str], seconds: Sequence[str], body: PairSettings
) -> tuple[NDArray[np.float32], TokenCounts]:
    """Return a score for each pair, and how many tokens the model read.

    A model with a head reads both texts; of one that makes vectors it is their cosine. Raises `ApiError` if the model
    is made for neither, or its head separates classes. ``firsts``: queries: one for all, or one for each of `seconds`.
    """
    chosen, head = ctx.chosen, ctx.chosen.model.score_head
    if head is None and chosen.model.pooling is None:
        raise cannot(chosen, "compares no texts: its checkpoint has neither a head for scores nor a modules.json")
    if body.instruction is not None and (head is None or not head.judges):
        message = (
            f"The model `{chosen.model.name}` reads no instruction; it is part of the query, if it was trained so."
        )
        raise ApiError(400, message, param="instruction")
    if head is None:
        vectors, usage = await vectors_of(ctx, [*firsts, *seconds], PoolingParams(truncate=body.truncate))
        directions = unit(vectors)
        scores: NDArray[np.float32] = np.sum(directions[: len(firsts)] * directions[len(firsts) :], axis=1)
        return scores, usage
    _require(head, chosen)
    if len(head.labels) != 1:
        raise cannot(chosen, f"has no one score: its head separates {len(head.labels)} classes, see /v1/classify")
    if len(firsts) == 1 and len(firsts[0]) * len(seconds) > _MAX_REPEATED:
        message = (
            f"a query in front of {len(seconds)} texts must have at most {_MAX_REPEATED // len(seconds)} characters"
        )
        raise ApiError(400, message, param="query")
    queries = [*firsts] * (len(seconds) if len(firsts) == 1 else 1)
    prompts = await _prompts(chosen, head, queries, seconds, body.instruction, body.truncate)
    states, usage = await states_of(ctx, prompts)
    numbers = head.numbers(states)
    return (numbers if body.use_activation is False else head.reported(numbers))[:, 0], usage


async def head_numbers(ctx: ServeContext, prompts: Sequence[Any]) -> tuple[NDArray[np.float32], ScoreHead, TokenCounts]:
    """Return the numbers that a model's head makes of each prompt, and the head; raise `ApiError` if it has none."""
    head = _head_of(ctx.chosen)
    requests = [state_request(prompt) for prompt in prompts]
    await ctx.gateway.fetch_images(ctx.request, ctx.chosen.model, *requests)
    states, usage = await states_of(ctx, requests)
    return head.numbers(states), head, usage


async def numbers_of_rows(
    ctx: ServeContext, rows: Sequence[Sequence[str]], truncate: bool
) -> tuple[NDArray[np.float32], ScoreHead]:
    """Return the numbers that a model's head makes of texts and of pairs of texts, ``[rows, labels]``, and the head.

    Raises `ApiError` if it has none.
    """
    chosen, head = ctx.chosen, _head_of(ctx.chosen)
    pairs = [row for row in rows if len(row) > 1]
    firsts, seconds = [row[0] for row in pairs], [row[1] for row in pairs]
    of_pairs = iter(await _prompts(chosen, head, firsts, seconds, None, truncate))
    prompts = []
    for row in rows:
        text = await truncated(chosen, head.text_frame, row[0]) if truncate and len(row) == 1 else row[0]
        prompts.append(next(of_pairs) if len(row) > 1 else state_request(text))
    states, _ = await states_of(ctx, prompts)
    return head.numbers(states), head


async def _prompts(
    chosen: Chosen,
    head: ScoreHead,
    queries: Sequence[str],
    documents: Sequence[str],
    instruction: str | None,
    truncate: bool,
) -> list[GenerateRequest]:
    if head.judges:
        pairs = zip(queries, documents, strict=True)
        return [state_request(judging_prompt(query, document, instruction)) for query, document in pairs]
    some, texts = asyncio.Semaphore(_AT_A_TIME), dict.fromkeys((*queries, *documents))

    max_len = await chosen.model.context_len() if truncate else None

    async def tokens(text: str) -> list[int]:
        async with some:
            if max_len is not None and len(text) > max_len:
                return await first_tokens(chosen, head.text_frame, text, max_len)
            return head.text_frame.bare(await chosen.model.client.tokenize(text=text))

    ids = dict(zip(texts, await asyncio.gather(*map(tokens, texts)), strict=True))
    return [
        state_request(*head.frame.pair(ids[query], ids[text], max_len))
        for query, text in zip(queries, documents, strict=True)
    ]


def _head_of(chosen: Chosen) -> ScoreHead:
    head = chosen.model.score_head
    if head is None:
        raise cannot(chosen, "classifies nothing: its checkpoint has no head for it")
    _require(head, chosen)
    return head


def _require(head: ScoreHead, chosen: Chosen) -> None:
    if head.refusal:
        raise cannot(chosen, f"cannot be asked for scores: {head.refusal}")
