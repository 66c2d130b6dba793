"""Perplexity and logits of given texts: cross-entropy, and the logits after each token."""

import functools
import numbers
import queue
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lmdeploy.messages import GenerationConfig
from lmdeploy.offline.outputs import raise_error
from lmdeploy.turbomind.engine import Engine, EngineOutput, OutputCallback

if TYPE_CHECKING:
    import torch

TokenIds = Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Any]


def cross_entropies(engine: Engine, input_ids: TokenIds) -> list[float]:
    """Return each text's mean cross-entropy in nats a token; see ``AsyncEngine.get_ppl``."""
    rows = _rows(input_ids, 2, engine.session_len)
    means = []
    for output in _outputs(engine, rows, engine.score):
        assert output.ppl is not None
        total, count = output.ppl
        means.append(total / count)
    return means


def prompt_logits(engine: Engine, input_ids: TokenIds) -> "torch.Tensor":
    """Return the logits ``[texts, tokens, vocab]`` of texts; see ``AsyncEngine.get_logits``."""
    import torch

    rows = _rows(input_ids, 1, engine.session_len - 1)
    config = GenerationConfig(max_new_tokens=1, ignore_eos=True, output_logits="all")
    submit = functools.partial(engine.submit, gen_config=config, stream=False)
    logits = torch.zeros(len(rows), max(map(len, rows), default=0), engine.vocab_size)
    for index, output in enumerate(_outputs(engine, rows, lambda row, put: submit(row, on_output=put))):
        length = len(rows[index])
        logits[index, :length] = torch.from_numpy(output.logits)[:length]
    return logits


def _outputs(
    engine: Engine, rows: Sequence[list[int]], submit: Callable[[list[int], OutputCallback], int]
) -> list[EngineOutput]:
    """Return the only output of a request for each row, in order."""
    outputs: queue.SimpleQueue[EngineOutput] = queue.SimpleQueue()
    requests: list[int] = []
    found: dict[int, EngineOutput] = {}
    try:
        for row in rows:
            requests.append(submit(row, outputs.put))  # noqa: PERF401 - what was submitted must be known
        while len(found) < len(requests):
            output = outputs.get()
            raise_error(output)
            found[output.request] = output
    finally:
        for request in requests:
            engine.cancel(request)  # no effect on those that have ended
    return [found[request] for request in requests]


def _rows(input_ids: TokenIds, low: int, high: int) -> list[list[int]]:
    """Return the token ids of one or several texts, each of ``low`` to ``high``."""
    ids: Any = input_ids["input_ids"] if isinstance(input_ids, Mapping) else input_ids
    is_one = len(ids) == 0 or isinstance(ids[0], numbers.Integral)
    rows = [[int(token) for token in row] for row in ([ids] if is_one else ids)]
    for row in rows:
        if not low <= len(row) <= high:
            raise ValueError(f"input_ids must have from {low} to {high} tokens, for the session length, got {len(row)}")
    return rows
