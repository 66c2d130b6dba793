"""``POST /embed``, ``/embed_all``, ``/embed_sparse`` and ``/predict``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from fastapi import APIRouter, Request

from openai_gateway.endpoints.embeddings.tokens import sparse_vectors_of, token_vectors_of
from openai_gateway.endpoints.embeddings.vectors import PoolingParams, ServeContext, vectors_of
from openai_gateway.endpoints.scoring.heads import numbers_of_rows
from openai_gateway.endpoints.tei.protocol import EmbedRequest, Prediction, PredictRequest, SparseValue, TextsRequest
from openai_gateway.gateway import Gateway, GatewayDependency
from openai_gateway.models import Chosen, ServedModel
from openai_gateway.parsing import BoundedRoute

router = APIRouter(route_class=BoundedRoute)


@router.post("/embed")
async def embed(body: EmbedRequest, request: Request, gateway: GatewayDependency) -> list[list[float]]:
    """Return the vector of each text."""
    ctx = await _first(gateway, request, lambda model: model.pooling is not None and model.score_head is None)
    params = PoolingParams(body.dimensions, None, body.prompt_name, body.truncate, body.normalize)
    vectors, _ = await vectors_of(ctx, body.texts, params)
    made: list[list[float]] = vectors.tolist()
    return made


@router.post("/embed_all")
async def embed_all(body: TextsRequest, request: Request, gateway: GatewayDependency) -> list[list[list[float]]]:
    """Return the vectors of each text's tokens."""
    ctx = await _first(gateway, request, lambda model: model.token_heads is not None and model.score_head is None)
    params = PoolingParams(prompt_name=body.prompt_name, truncate=body.truncate)
    vectors, _ = await token_vectors_of(ctx, body.texts, params)
    return [vector.tolist() for vector in vectors]


@router.post("/embed_sparse")
async def embed_sparse(body: TextsRequest, request: Request, gateway: GatewayDependency) -> list[list[SparseValue]]:
    """Return how much each token of the vocabulary counts in each text, where it does."""
    ctx = await _first(
        gateway, request, lambda model: model.token_heads is not None and model.token_heads.makes_sparse_vectors
    )
    params = PoolingParams(prompt_name=body.prompt_name, truncate=body.truncate)
    vectors = await sparse_vectors_of(ctx, body.texts, params)
    return [[SparseValue(index=index, value=value) for index, value in vector.items()] for vector in vectors]


@router.post("/predict")
async def predict(
    body: PredictRequest, request: Request, gateway: GatewayDependency
) -> list[Prediction] | list[list[Prediction]]:
    """Return the classes of each text or pair, the most likely first."""
    ctx = await _first(gateway, request, lambda model: model.score_head is not None)
    numbers, head = await numbers_of_rows(ctx, body.rows, body.truncate)
    scores = numbers if body.raw_scores else head.reported(numbers)
    found = []
    for row in scores:
        order = np.argsort(-row, kind="stable")
        found.append([Prediction(label=head.labels[int(i)], score=float(row[i])) for i in order])
    return found[0] if body.is_one else found


async def _first(gateway: Gateway, request: Request, can: Callable[[ServedModel], bool]) -> ServeContext:
    """Return a request to the first model that can be asked: TEI serves one model, and its clients name none."""
    fitting = next((model for model in await gateway.models.all() if can(model)), None)
    chosen = await gateway.choose(None, request) if fitting is None else Chosen(fitting, fitting.name)
    return ServeContext(gateway, request, chosen)
