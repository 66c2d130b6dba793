"""Cross-entropy of given texts."""

import numbers
import queue
from collections.abc import Mapping, Sequence
from typing import Any

from lmdeploy.offline.outputs import raise_error
from lmdeploy.turbomind.engine import Engine, EngineOutput

TokenIds = Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Any]


def cross_entropies(engine: Engine, input_ids: TokenIds) -> list[float]:
    """Return each text's mean cross-entropy in nats a token; see ``AsyncEngine.get_ppl``."""
    rows = _rows(input_ids)
    for row in rows:
        if not 2 <= len(row) <= engine.session_len:
            raise ValueError(
                f"input_ids must have from 2 to the session length {engine.session_len} tokens, got {len(row)}"
            )
    outputs: queue.SimpleQueue[EngineOutput] = queue.SimpleQueue()
    requests: list[int] = []
    scores: dict[int, float] = {}
    try:
        for row in rows:
            requests.append(engine.score(row, outputs.put))  # noqa: PERF401 - what was submitted must be known
        while len(scores) < len(requests):
            output = outputs.get()
            raise_error(output)
            assert output.ppl is not None
            total, count = output.ppl
            scores[output.request] = total / count
    finally:
        for request in requests:
            engine.cancel(request)  # no effect on those that have ended
    return [scores[request] for request in requests]


def _rows(input_ids: TokenIds) -> list[list[int]]:
    ids: Any = input_ids["input_ids"] if isinstance(input_ids, Mapping) else input_ids
    is_one = len(ids) == 0 or isinstance(ids[0], numbers.Integral)
    return [[int(token) for token in row] for row in ([ids] if is_one else ids)]
