"""Text embeddings by a pooling model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from fastapi import Request

from lmdeploy.model_metadata.pooling import Pooling
from lmdeploy.serve.client import GenerateRequest
from lmdeploy.tokenizer_readers.framed import Frame
from openai_gateway.endpoints.embeddings.protocol import TokenCounts
from openai_gateway.errors import ApiError
from openai_gateway.gateway import Gateway
from openai_gateway.generation.cancellation import run_unless_disconnected
from openai_gateway.generation.collecting import collect
from openai_gateway.middleware.api_keys import keys_of
from openai_gateway.models import Chosen

if TYPE_CHECKING:
    from numpy.typing import NDArray

Made = TypeVar("Made")

MAX_NUMBERS = 8 << 20
"""Of hidden states in memory at a time, and of token vectors in a response."""

_AT_A_TIME = 64  # texts of a request in the engine
_TOKENIZED_AT_A_TIME = 8
# Names of prompts that checkpoints have for what callers call a type of input.
_PROMPTS_OF = {
    "query": ("query", "search_query", "retrieval.query"),
    "document": ("document", "passage", "search_document", "retrieval.passage"),
}
_TYPES = {"search_query": "query", "search_document": "document", "passage": "document"}


@dataclass(frozen=True)
class PoolingParams:
    """How a caller wants vectors made."""

    # How many numbers of each are kept, as models allow that were trained so (Kusupati et al., 2022); such a vector has
    # length 1. None: all
    dimensions: int | None = None
    # Task of the texts: ``query`` or ``document``, or as the model calls it; it has a prompt for it, or needs none
    input_type: str | None = None
    # Which of the model's prompts is in front of each text. None: that of `input_type`, else the default one
    prompt_name: str | None = None
    truncate: bool = False  # the end of a text that is longer than the model reads is left out
    normalizes: bool | None = None  # whether vectors have length 1. None: as the model says
    # Which of the model's adapters is used, with the prompt of its name unless another one is named. None: none
    task: str | None = None


@dataclass(frozen=True)
class ServeContext:
    """A request for what a model makes of texts, without a response to them."""

    # Admit the texts
    gateway: Gateway
    request: Request
    chosen: Chosen  # the model that reads them
    user: str | None = None  # whose they are
    keep_alive: float | None = None  # of the requests (`lmdeploy.serve.request.RequestFields`)


def cannot(chosen: Chosen, why: str) -> ApiError:
    """Return the refusal of what a model is not made for."""
    return ApiError(400, f"The model `{chosen.model.name}` {why}.", param="model")


async def vectors_of(
    ctx: ServeContext, inputs: Sequence[str] | Sequence[list[int]], params: PoolingParams = PoolingParams()
) -> tuple[NDArray[np.float32], TokenCounts]:
    """Return the vector of each text, as its model wants it made, and how many tokens the texts have.

    Raises `ApiError` if the model is not made for embeddings, has no such prompt, or its vectors are shorter.
    ``inputs``: texts, or their tokens.
    """
    model, pooling = ctx.chosen.model, ctx.chosen.model.pooling
    if pooling is None or pooling.refusal:
        reason = pooling.refusal if pooling else "its checkpoint has no modules.json"
        raise cannot(ctx.chosen, f"makes no embeddings: {reason}")
    dimensions = params.dimensions
    if dimensions is not None and pooling.dimensions and dimensions not in pooling.dimensions:
        sizes = ", ".join(map(str, pooling.dimensions))
        message = f"dimensions must be one of {sizes} with the model `{model.name}`, got {dimensions}"
        raise ApiError(400, message, param="dimensions")
    if task := params.task or ("" if ctx.chosen.is_adapter else pooling.default_task):
        ctx, params = await with_task(ctx, pooling, params, task)
    chosen, prompt = ctx.chosen, prompt_of(ctx.chosen, pooling, params)
    if pooling.without_prompt and prompt and isinstance(inputs[0], str):
        beginning = pooling.frame.bare(await model.client.tokenize(text=pooling.whole(prompt, "")))
        skipped = len(pooling.frame.before) + len(beginning)
        ids = await ids_of(chosen, inputs, params)
        pooled, usage = await made_of(ctx, ids, lambda _, rows: pooling.pooled(rows, skipped))
        vectors = np.stack(pooled)
    else:
        texts: list[Any] = [pooling.whole(prompt, text) if isinstance(text, str) else text for text in inputs]
        if params.truncate:
            texts = [await truncated(chosen, pooling.frame, text) for text in texts]
        vectors, usage = await states_of(ctx, [state_request(text) for text in texts])
    try:
        return pooling.finished(vectors, params.normalizes, dimensions), usage
    except ValueError as error:
        raise ApiError(400, str(error), param="dimensions") from None


async def with_task(
    ctx: ServeContext, pooling: Pooling, params: PoolingParams, task: str
) -> tuple[ServeContext, PoolingParams]:
    """Return the request to the adapter for a task, and how vectors are made with it."""
    model = ctx.chosen.model
    known = await model.adapters.visible(*keys_of(ctx.request.scope))
    if task not in known:
        names = ", ".join(known) or "none"
        message = f"task must be an adapter of the model `{model.name}` ({names}), got {task}"
        raise ApiError(400, message, param="task")
    if params.prompt_name is None and params.input_type is None and task in pooling.prompts:
        params = replace(params, prompt_name=task)
    return replace(ctx, chosen=Chosen(model, task, is_adapter=True)), params


def prompt_of(chosen: Chosen, pooling: Pooling, params: PoolingParams) -> str:
    """Return the text in front of each text."""
    known = pooling.prompts
    if params.prompt_name is not None:
        if params.prompt_name not in known:
            names = ", ".join(known) or "none"
            message = (
                f"prompt_name must be a prompt of the model `{chosen.model.name}` ({names}), got {params.prompt_name}"
            )
            raise ApiError(400, message, param="prompt_name")
        return known[params.prompt_name]
    kind = params.input_type
    if kind is None or not known:
        return known.get(pooling.default_prompt, "")
    for name in (kind, *_PROMPTS_OF.get(_TYPES.get(kind, kind), ())):
        if name in known:
            return known[name]
    if _TYPES.get(kind, kind) in _PROMPTS_OF:  # one of the two has none with some models
        return ""
    message = f"input_type must be query, document or a prompt of the model ({', '.join(known)}), got {kind}"
    raise ApiError(400, message, param="input_type")


async def truncated(chosen: Chosen, frame: Frame, text: Any) -> Any:
    """Return a text, or its tokens, without what the model does not read at its end."""
    max_len = await chosen.model.context_len()
    if max_len is None:
        return text
    if not isinstance(text, str):
        return frame.single(frame.bare(text), max_len) if len(text) > max_len else text
    if len(text.encode()) + len(frame.before) + len(frame.after) <= max_len:
        return text
    return frame.single(await first_tokens(chosen, frame, text, max_len), max_len)


async def first_tokens(chosen: Chosen, frame: Frame, text: str, max_len: int) -> list[int]:
    """Return the tokens of a text, at least the first `max_len` if it has more, without those around it."""
    end, ids = 4 * max_len, []
    while True:
        ids = frame.bare(await chosen.model.client.tokenize(text=text[:end]))
        if len(ids) >= max_len or end >= len(text):
            return ids
        end += 4 * (max_len - len(ids)) + max_len


async def states_of(ctx: ServeContext, generates: Sequence[GenerateRequest]) -> tuple[NDArray[np.float32], TokenCounts]:
    """Return the hidden state of each prompt's last token, ``[prompts, hidden size]``, and their token count."""
    rows, usage = await rows_of(ctx, generates)
    return np.frombuffer(b"".join(rows), dtype="<f4").reshape(len(rows), -1), usage


async def rows_of(ctx: ServeContext, generates: Sequence[GenerateRequest]) -> tuple[list[bytes], TokenCounts]:
    """Return the hidden states that the engine returns for each prompt, float32, and how many tokens they have."""
    gateway, request, model = ctx.gateway, ctx.request, ctx.chosen.model
    for generate in generates:
        if ctx.keep_alive is not None:
            generate.fields["keep_alive"] = ctx.keep_alive
        gateway.admit(request, generate, chosen=ctx.chosen, user=ctx.user)
    rows: list[bytes] = []
    tokens = 0
    for begin in range(0, len(generates), _AT_A_TIME):
        some = generates[begin : begin + _AT_A_TIME]
        streams = [gateway.watched(request, model, model.client.generate(generate)) for generate in some]
        responses = await run_unless_disconnected(request.receive, collect(streams))
        rows += [response.chunks[-1].embedding for response in responses.choices]
        tokens += responses.usage.prompt_tokens
    return rows, TokenCounts(prompt_tokens=tokens, total_tokens=tokens)


def state_request(
    prompt: str | list[Any], second_text_begin: int | None = None, of_tokens: bool = False
) -> GenerateRequest:
    """Return the request for what a model makes of a text, tokens, or a conversation after which nobody speaks.

    With `of_tokens` that is the hidden state of each token.
    """
    fields: dict[str, Any] = {"stream": False, "max_new_tokens": 0, "output_embedding": True}
    if of_tokens:
        fields["output_token_embeddings"] = True
    if second_text_begin is not None:
        fields["second_text_begin"] = second_text_begin
    if isinstance(prompt, str):
        return GenerateRequest(text_input=prompt, **fields)
    if isinstance(prompt[0], int):
        return GenerateRequest(input_ids=prompt, **fields)
    options = {"add_generation_prompt": False}
    return GenerateRequest(messages=prompt, template_options=options, **fields)


async def ids_of(chosen: Chosen, inputs: Sequence[str] | Sequence[list[int]], params: PoolingParams) -> list[list[int]]:
    """Return the tokens of each text, with its prompt in front, and those around it."""
    pooling = chosen.model.pooling or Pooling()
    prompt = prompt_of(chosen, pooling, params)
    some = asyncio.Semaphore(_TOKENIZED_AT_A_TIME)

    async def tokens_of(text: str | list[int]) -> list[int]:
        whole = pooling.whole(prompt, text) if isinstance(text, str) else text
        async with some:
            kept = await truncated(chosen, pooling.frame, whole) if params.truncate else whole
            return await chosen.model.client.tokenize(text=kept) if isinstance(kept, str) else list(kept)

    return await asyncio.gather(*map(tokens_of, inputs))


async def made_of(
    ctx: ServeContext, ids: Sequence[list[int]], make: Callable[[list[int], NDArray[np.float32]], Made]
) -> tuple[list[Made], TokenCounts]:
    """Return `make`'s result for the tokens and hidden states of each text; few states are in memory at a time."""
    heads = ctx.chosen.model.token_heads
    assert heads is not None  # an encoder's engine directory has them
    size = heads.hidden_size
    made: list[Made] = []
    while len(made) < len(ids):
        some = ids[len(made) :]
        ends = np.cumsum([len(tokens) for tokens in some]) * size
        some = some[: max(1, int(np.searchsorted(ends, MAX_NUMBERS, "right")))]
        rows, _ = await rows_of(ctx, [state_request(tokens, of_tokens=True) for tokens in some])
        states = [np.frombuffer(row, dtype="<f4").reshape(-1, size) for row in rows]
        made += await asyncio.to_thread(_make_all, make, some, states)
    tokens = sum(map(len, ids))
    return made, TokenCounts(prompt_tokens=tokens, total_tokens=tokens)


def _make_all(
    make: Callable[[list[int], NDArray[np.float32]], Made],
    ids: Sequence[list[int]],
    states: Sequence[NDArray[np.float32]],
) -> list[Made]:
    return [make(*pair) for pair in zip(ids, states, strict=True)]
