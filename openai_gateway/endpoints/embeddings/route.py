"""``POST /v1/embeddings``."""

from __future__ import annotations

import base64

from fastapi import APIRouter, Request

from openai_gateway.endpoints.embeddings.protocol import Embedding, EmbeddingList, EmbeddingRequest
from openai_gateway.endpoints.embeddings.vectors import PoolingParams, ServeContext, vectors_of
from openai_gateway.gateway import GatewayDependency
from openai_gateway.parsing import BoundedRoute

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/embeddings")
async def create_embeddings(body: EmbeddingRequest, request: Request, gateway: GatewayDependency) -> EmbeddingList:
    """Return the vector of each text."""
    chosen = await gateway.choose(body.model, request)
    params = PoolingParams(body.dimensions, body.input_type, body.prompt_name, body.truncate, task=body.task)
    vectors, usage = await vectors_of(ServeContext(gateway, request, chosen, body.user), body.inputs, params)
    is_text = body.encoding_format == "base64"
    made = [base64.b64encode(vector.tobytes()).decode() if is_text else vector.tolist() for vector in vectors]
    data = [Embedding(index=index, embedding=vector) for index, vector in enumerate(made)]
    return EmbeddingList(data=data, model=chosen.name, usage=usage)
