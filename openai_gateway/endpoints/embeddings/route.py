"""``POST /v1/embeddings``, ``/v1/rerank`` and ``/v1/score``."""

from __future__ import annotations

import base64
import time

import numpy as np
from fastapi import APIRouter, Request

from openai_gateway.endpoints.embeddings.protocol import (
    Embedding,
    EmbeddingList,
    EmbeddingRequest,
    RankedDocument,
    Ranking,
    RerankRequest,
    Score,
    ScoreList,
    ScoreRequest,
)
from openai_gateway.endpoints.embeddings.vectors import unit, vectors_of
from openai_gateway.gateway import GatewayDependency
from openai_gateway.parsing import BoundedRoute

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/embeddings")
async def create_embeddings(body: EmbeddingRequest, request: Request, gateway: GatewayDependency) -> EmbeddingList:
    """Return the vector of each text."""
    chosen = await gateway.choose(body.model, request)
    vectors, usage = await vectors_of(gateway, request, chosen, body.inputs, body.user, body.dimensions)
    is_text = body.encoding_format == "base64"
    made = [base64.b64encode(vector.tobytes()).decode() if is_text else vector.tolist() for vector in vectors]
    data = [Embedding(index=index, embedding=each) for index, each in enumerate(made)]
    return EmbeddingList(data=data, model=chosen.name, usage=usage)


@router.post("/v1/rerank")
@router.post("/rerank", include_in_schema=False)
@router.post("/v2/rerank", include_in_schema=False)
async def rerank(body: RerankRequest, request: Request, gateway: GatewayDependency) -> Ranking:
    """Return documents, those nearest to the query first."""
    chosen = await gateway.choose(body.model, request)
    texts = body.texts
    vectors, usage = await vectors_of(gateway, request, chosen, [body.query, *texts], body.user)
    directions = unit(vectors)
    scores = directions[1:] @ directions[0]
    order = np.argsort(-scores, kind="stable")[: body.top_n]
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
    """Return how near the texts of each pair are."""
    chosen = await gateway.choose(body.model, request)
    firsts, seconds = body.firsts, body.seconds
    vectors, usage = await vectors_of(gateway, request, chosen, [*firsts, *seconds], body.user)
    directions = unit(vectors)
    scores = np.sum(directions[: len(firsts)] * directions[len(firsts) :], axis=1)
    data = [Score(index=index, score=float(value)) for index, value in enumerate(scores)]
    answer_id, created = _id("score", request), int(time.time())
    return ScoreList(id=answer_id, created=created, model=chosen.name, data=data, usage=usage)


def _id(kind: str, request: Request) -> str:
    return f"{kind}-{request.scope['lmdeploy.request_id']}"
