"""Embeddings of texts and scores of pairs, with pooling models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lmdeploy.model_metadata.pooling import Pooling, read_pooling, unit
from lmdeploy.model_metadata.score_head import ScoreHead, judging_prompt, read_score_head
from lmdeploy.model_metadata.task_adapters import task_adapters
from lmdeploy.model_metadata.token_heads import NO_SPARSE_LAYERS, TokenHeads, read_token_heads
from lmdeploy.offline.outputs import only_outputs
from lmdeploy.turbomind.engine import Engine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lmdeploy.tokenizer import Tokenizer
    from lmdeploy.turbomind.engine import OutputCallback

Framed = tuple[list[int], int | None]  # tokens, and where the second text's token type begins


def embed_texts(
    engine: Engine,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    prompt_name: str | None = None,
    dimensions: int | None = None,
    truncate: bool = False,
    task: str | None = None,
) -> NDArray[np.float32]:
    """Return the vector of each text; see ``AsyncEngine.embed``."""
    pooling = _pooling_of(engine)
    if dimensions is not None:
        check_dimensions(pooling, dimensions)
    task = task or pooling.default_task or None
    if task is not None and task not in (tasks := task_adapters(engine.directory.path)):
        raise ValueError(f"task must be one that the model has ({', '.join(tasks) or 'none'}), got {task!r}")
    prompt = prompt_of(pooling, task if prompt_name is None and task in pooling.prompts else prompt_name)
    ids = tokenizer.encode_bare([pooling.whole(prompt, text) for text in texts])
    frame, max_len = tokenizer.frame(), engine.session_len if truncate else None
    framed = ((frame.single(tokens, max_len), None) for tokens in ids)
    if not (pooling.without_prompt and prompt):
        vectors = states_of(engine, framed, task)
    else:
        skipped = len(frame.before) + len(tokenizer.encode_bare([pooling.whole(prompt, "")])[0])
        states = rows_of(engine, framed, of_tokens=True, adapter_name=task)
        vectors = np.stack([pooling.pooled(rows, skipped) for rows in states])
    return pooling.finished(vectors, dimensions=dimensions) if len(vectors) else vectors


def score_pairs(
    engine: Engine, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], truncate: bool = False
) -> NDArray[np.float32]:
    """Return a score of each pair of texts; see ``AsyncEngine.score``."""
    head = read_score_head(engine.directory.path)
    firsts, seconds = [first for first, _ in pairs], [second for _, second in pairs]
    if head is None:
        one, other = (unit(embed_texts(engine, tokenizer, texts, truncate=truncate)) for texts in (firsts, seconds))
        cosines: NDArray[np.float32] = np.sum(one * other, axis=1)
        return cosines
    if head.refusal:
        raise ValueError(f"the model cannot be asked for scores: {head.refusal}")
    if len(head.labels) != 1:
        raise ValueError(f"the model has no one score: its head separates {len(head.labels)} classes")
    states = states_of(engine, _framed(engine, tokenizer, head, firsts, seconds, truncate))
    return head.reported(head.numbers(states))[:, 0]


def _framed(
    engine: Engine, tokenizer: Tokenizer, head: ScoreHead, firsts: list[str], seconds: list[str], truncate: bool
) -> list[Framed]:
    if head.judges:
        prompts = [judging_prompt(first, second) for first, second in zip(firsts, seconds, strict=True)]
        return [(tokenizer.encode(prompt), None) for prompt in prompts]
    ids = tokenizer.encode_bare([*firsts, *seconds])
    max_len = engine.session_len if truncate else None
    pairs = zip(ids[: len(firsts)], ids[len(firsts) :], strict=True)
    return [head.frame.pair(first, second, max_len) for first, second in pairs]


def states_of(engine: Engine, framed: Iterable[Framed], adapter_name: str | None = None) -> NDArray[np.float32]:
    """Return the hidden states of texts, with an adapter if one is named: ``[texts, hidden size]``.

    Raises `ValueError` if the engine refuses a text, such as one that is too long; names it.
    """
    found = [rows[0] for rows in rows_of(engine, framed, adapter_name=adapter_name)]
    return np.stack(found) if found else np.zeros((0, 0), np.float32)


def token_vectors(
    engine: Engine, tokenizer: Tokenizer, texts: Sequence[str], prompt_name: str | None = None, truncate: bool = False
) -> list[NDArray[np.float32]]:
    """Return the vectors of each text's tokens; see ``AsyncEngine.embed_tokens``."""
    heads = _token_heads_of(engine)
    ids = _token_ids(engine, tokenizer, texts, prompt_name, truncate)
    rows = rows_of(engine, ((tokens, None) for tokens in ids), of_tokens=True)
    return [heads.vectors_of(states) for states in rows]


def sparse_vectors(
    engine: Engine, tokenizer: Tokenizer, texts: Sequence[str], prompt_name: str | None = None, truncate: bool = False
) -> list[dict[int, float]]:
    """Return the weights of each text's tokens; see ``AsyncEngine.embed_sparse``."""
    heads = _token_heads_of(engine)
    if not heads.makes_sparse_vectors:
        raise ValueError(f"the model makes no sparse vectors: its checkpoint has {NO_SPARSE_LAYERS}")
    ids = _token_ids(engine, tokenizer, texts, prompt_name, truncate)
    rows = rows_of(engine, ((tokens, None) for tokens in ids), of_tokens=True)
    return [heads.sparse_vector_of(*pair) for pair in zip(ids, rows, strict=True)]


def _token_ids(
    engine: Engine, tokenizer: Tokenizer, texts: Sequence[str], prompt_name: str | None, truncate: bool
) -> list[list[int]]:
    pooling = read_pooling(engine.directory.path)
    if pooling is not None:
        prompt = prompt_of(pooling, prompt_name)
        texts = [pooling.whole(prompt, text) for text in texts]
    frame, max_len = tokenizer.frame(), engine.session_len if truncate else None
    return [frame.single(tokens, max_len) for tokens in tokenizer.encode_bare(list(texts))]


def _token_heads_of(engine: Engine) -> TokenHeads:
    heads = read_token_heads(engine.directory.path)
    if heads is None or heads.refusal:
        raise ValueError(f"the model makes no vectors of tokens: {heads.refusal if heads else 'it is no encoder'}")
    return heads


def rows_of(
    engine: Engine, framed: Iterable[Framed], of_tokens: bool = False, adapter_name: str | None = None
) -> list[NDArray[np.float32]]:
    """Return the hidden states that the engine returns of each text: ``[1, hidden size]``, or one of each token.

    Raises as `states_of`.
    """

    def submit(index: int, text: Framed, on_output: OutputCallback) -> int:
        ids, second = text
        try:
            return engine.embed(ids, on_output, second, of_tokens=of_tokens, adapter_name=adapter_name)
        except ValueError as error:
            raise ValueError(f"text {index}: {error}") from None

    outputs = only_outputs(engine, (partial(submit, *numbered) for numbered in enumerate(framed)))
    return [output.embedding for output in outputs if output.embedding is not None]


def prompt_of(pooling: Pooling, name: str | None) -> str:
    """Return the text in front of each text; raise `ValueError` if there is no prompt of that name."""
    if name is None:
        return pooling.prompts.get(pooling.default_prompt, "")
    if name not in pooling.prompts:
        known = ", ".join(pooling.prompts) or "none"
        raise ValueError(f"prompt_name must be one that the model has ({known}), got {name!r}")
    return pooling.prompts[name]


def check_dimensions(pooling: Pooling, dimensions: int) -> None:
    """Raise ``ValueError`` for a number of dimensions that the model's vectors cannot be cut to."""
    known = pooling.dimensions
    if dimensions < 1 or (known and dimensions not in known):
        allowed = f"one of {', '.join(map(str, known))}" if known else ">= 1"
        raise ValueError(f"dimensions must be {allowed} with this model, got {dimensions}")


def _pooling_of(engine: Engine) -> Pooling:
    pooling = read_pooling(engine.directory.path)
    if pooling is None or pooling.refusal:
        reason = pooling.refusal if pooling else "its checkpoint has no modules.json"
        raise ValueError(f"the model makes no embeddings: {reason}")
    return pooling
