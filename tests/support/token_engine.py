"""The engine asked with token ids, one request at a time."""

import threading
from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from lmdeploy import GenerationConfig, PytorchEngineConfig, TurbomindEngineConfig
from lmdeploy.turbomind.engine import Engine, EngineOutput
from tests.support.both_engines import config_for

TIMEOUT = 180.0


class TokenEngine:
    """An engine in float32 that cuts prompts and keeps prefixes, or as ``config`` says; a context manager."""

    def __init__(
        self,
        directory: Path,
        config: PytorchEngineConfig | TurbomindEngineConfig | None = None,
        backend: str = "turbomind",
        **settings: Any,
    ) -> None:
        defaults = {
            "dtype": "float32",
            "session_len": 512,
            "cache_max_entry_count": 128,
            "cache_block_seq_len": 16,
            "max_batch_size": 4,
            "num_tokens_per_iter": 20,
            "enable_prefix_caching": True,
        }
        self.engine = Engine(str(directory), config or config_for(backend, **(defaults | settings)))

    def __enter__(self) -> "TokenEngine":
        return self

    def __exit__(self, *exception: object) -> None:
        self.engine.close()

    def generate(
        self, ids: Sequence[int], tokens: int, rows: str = "all", adapter: str | None = None
    ) -> tuple[list[int], torch.Tensor]:
        """Return the greedy response of ``tokens`` tokens, and the logits of ``rows`` (``all`` or ``generation``)."""
        config = GenerationConfig(max_new_tokens=tokens, ignore_eos=True, output_logits=rows)
        done = threading.Event()
        outputs: list[EngineOutput] = []

        def receive(output: EngineOutput) -> None:
            outputs.append(output)
            if output.is_final:
                done.set()

        self.engine.submit(list(ids), config, receive, stream=False, adapter_name=adapter)
        assert done.wait(TIMEOUT), "no response"
        assert not outputs[-1].error, outputs[-1].error
        logits = [torch.from_numpy(output.logits) for output in outputs if output.logits is not None]
        return [token for output in outputs for token in output.token_ids], torch.cat(logits)

    def respond(
        self, prompts: Sequence[Sequence[int]], adapters: Sequence[str | None] = (), *, tokens: int = 1
    ) -> list[list[int]]:
        """Return the greedy responses to prompts that come all at once."""
        config = GenerationConfig(max_new_tokens=tokens, ignore_eos=True)
        responses: list[list[int]] = [[] for _ in prompts]
        left = threading.Semaphore(0)

        def receive(index: int, output: EngineOutput) -> None:
            assert not output.error, output.error
            responses[index] += output.token_ids
            if output.is_final:
                left.release()

        for index, (ids, adapter) in enumerate(zip_longest(prompts, adapters)):
            self.engine.submit(list(ids), config, partial(receive, index), stream=False, adapter_name=adapter)
        assert all(left.acquire(timeout=TIMEOUT) for _ in prompts), "no response"
        return responses

    def metrics(self) -> dict[str, float]:
        """Return the engine's metrics."""
        return self.engine.metrics()

    def matched_tokens(self) -> float:
        """Return how many prompt tokens came from the cache so far."""
        return self.metrics()["prefix_cache_hits_total"]


def relative_error(native: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the largest difference, row by row, relative to the row's largest value."""
    assert native.shape == reference.shape
    return float(((native - reference).abs().amax(dim=-1) / reference.abs().amax(dim=-1)).max())
