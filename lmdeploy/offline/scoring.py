"""Perplexity and logits of given texts: cross-entropy, and the logits after each token."""

import numbers
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lmdeploy.messages import GenerationConfig
from lmdeploy.offline.outputs import only_outputs
from lmdeploy.turbomind.engine import Engine

if TYPE_CHECKING:
    import torch

TokenIds = Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Any]


def cross_entropies(engine: Engine, input_ids: TokenIds) -> list[float]:
    """Return each text's mean cross-entropy in nats a token; see ``AsyncEngine.get_ppl``."""
    rows = _rows(input_ids, 2, engine.session_len)
    means = []
    for output in only_outputs(engine, [partial(engine.score, row) for row in rows]):
        assert output.ppl is not None
        total, count = output.ppl
        means.append(total / count)
    return means


def prompt_logits(engine: Engine, input_ids: TokenIds) -> "torch.Tensor":
    """Return the logits ``[texts, tokens, vocab]`` of texts; see ``AsyncEngine.get_logits``."""
    import torch

    rows = _rows(input_ids, 1, engine.session_len - 1)
    config = GenerationConfig(max_new_tokens=1, ignore_eos=True, output_logits="all")
    submit = [partial(engine.submit, row, config, stream=False) for row in rows]
    logits = torch.zeros(len(rows), max(map(len, rows), default=0), engine.vocab_size)
    for index, output in enumerate(only_outputs(engine, submit)):
        length = len(rows[index])
        logits[index, :length] = torch.from_numpy(output.logits)[:length]
    return logits


def _rows(input_ids: TokenIds, low: int, high: int) -> list[list[int]]:
    """Return the token ids of one or several texts, each of ``low`` to ``high``."""
    ids: Any = input_ids["input_ids"] if isinstance(input_ids, Mapping) else input_ids
    is_one = len(ids) == 0 or isinstance(ids[0], numbers.Integral)
    rows = [[int(token) for token in row] for row in ([ids] if is_one else ids)]
    for row in rows:
        if not low <= len(row) <= high:
            raise ValueError(f"input_ids must have from {low} to {high} tokens, for the session length, got {len(row)}")
    return rows
