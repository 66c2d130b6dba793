"""``POST /v1/rerank``, ``/v1/score``, ``/v1/classify`` and ``/v1/pooling``."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from fastapi import APIRouter, Request

from openai_gateway.endpoints.embeddings.protocol import TokenCounts
from openai_gateway.endpoints.embeddings.tokens import token_vectors_of, token_weights_of
from openai_gateway.endpoints.embeddings.vectors import PoolingParams, ServeContext, vectors_of
from openai_gateway.endpoints.scoring.heads import head_numbers, scores_of_pairs
from openai_gateway.endpoints.scoring.protocol import (
    Classified,
    ClassifiedList,
    ClassifyRequest,
    Pooled,
    PooledList,
    PoolingRequest,
    RankedDocument,
    RankedText,
    Ranking,
    RerankRequest,
    Score,
    ScoreList,
    ScoreRequest,
)
from openai_gateway.gateway import GatewayDependency
from openai_gateway.parsing import BoundedRoute

if TYPE_CHECKING:
    from numpy.typing import NDArray

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/rerank")
@router.post("/rerank", include_in_schema=False)
@router.post("/v2/rerank", include_in_schema=False)
async def rerank(body: RerankRequest, request: Request, gateway: GatewayDependency) -> Ranking | list[RankedText]:
    """Return documents, those that are most about the query first."""
    chosen = await gateway.choose(body.model, request)
    texts = body.listed
    if body.max_tokens_per_doc is not None or body.raw_scores:
        changed = {"truncate": body.truncate or body.max_tokens_per_doc is not None}
        body = body.model_copy(update=changed | ({"use_activation": False} if body.raw_scores else {}))
    scores, usage = await scores_of_pairs(ServeContext(gateway, request, chosen, body.user), [body.query], texts, body)
    order = np.argsort(-scores, kind="stable")[: body.top_n or None]
    if body.texts is not None:
        shown = texts if body.return_text else [None] * len(texts)
        return [RankedText(index=i, score=float(scores[i]), text=shown[i]) for i in map(int, order)]
    results = [
        RankedDocument(
            index=index,
            document={"text": texts[index]} if body.return_documents else None,
            relevance_score=float(scores[index]),
        )
        for index in map(int, order)
    ]
    return Ranking(id=_id("rerank", request), model=chosen.name, results=results, usage=usage)


@router.post("/v1/score")
@router.post("/score", include_in_schema=False)
async def score(body: ScoreRequest, request: Request, gateway: GatewayDependency) -> ScoreList:
    """Return a score of each pair of texts."""
    chosen = await gateway.choose(body.model, request)
    ctx = ServeContext(gateway, request, chosen, body.user)
    scores, usage = await scores_of_pairs(ctx, body.firsts, body.seconds, body)
    data = [Score(index=index, score=float(value)) for index, value in enumerate(scores)]
    response_id, created = _id("score", request), int(time.time())
    return ScoreList(id=response_id, created=created, model=chosen.name, data=data, usage=usage)


@router.post("/v1/classify")
@router.post("/classify", include_in_schema=False)
async def classify(body: ClassifyRequest, request: Request, gateway: GatewayDependency) -> ClassifiedList:
    """Return the class of each text, with a model that has a head for classes."""
    chosen = await gateway.choose(body.model, request)
    numbers, head, usage = await head_numbers(ServeContext(gateway, request, chosen, body.user), body.prompts)
    rows = numbers if body.use_activation is False else head.reported(numbers)
    data = [
        Classified(index=index, label=head.labels[int(row.argmax())], probs=row.tolist(), num_classes=len(head.labels))
        for index, row in enumerate(rows)
    ]
    response_id, created = _id("classify", request), int(time.time())
    return ClassifiedList(id=response_id, created=created, model=chosen.name, data=data, usage=usage)


@router.post("/v1/pooling")
@router.post("/pooling", include_in_schema=False)
async def pool(body: PoolingRequest, request: Request, gateway: GatewayDependency) -> PooledList:
    """Return a model's scores of each text, or of each of its tokens, by the task."""
    chosen = await gateway.choose(body.model, request)
    rows, usage = await _pooled(body, ServeContext(gateway, request, chosen, body.user))
    is_text = body.encoding_format == "base64"
    made = [base64.b64encode(row.astype("<f4").tobytes()).decode() if is_text else row.tolist() for row in rows]
    data = [Pooled(index=index, data=vector) for index, vector in enumerate(made)]
    response_id, created = _id("pool", request), int(time.time())
    return PooledList(id=response_id, created=created, model=chosen.name, data=data, usage=usage)


async def _pooled(body: PoolingRequest, ctx: ServeContext) -> tuple[Iterable[NDArray[np.float32]], TokenCounts]:
    model, task = ctx.chosen.model, body.task
    if task is None:
        task = "embed" if model.score_head is None and model.pooling is not None else "classify"
    if body.messages is not None or task == "classify":
        rows, _, usage = await head_numbers(ctx, body.prompts)
        return rows, usage
    params = PoolingParams(None, body.input_type, body.prompt_name, body.truncate)
    if task == "embed":
        return await vectors_of(ctx, body.prompts, params)
    if task == "token_embed":
        return await token_vectors_of(ctx, body.prompts, params)
    weights, usage = await token_weights_of(ctx, body.prompts, params)
    return [row[:, None] for row in weights], usage


def _id(kind: str, request: Request) -> str:
    return f"{kind}-{request.scope['lmdeploy.request_id']}"
