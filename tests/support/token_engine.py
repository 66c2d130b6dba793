"""The engine asked with token ids, one request at a time."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lmdeploy import GenerationConfig, PytorchEngineConfig
from lmdeploy.turbomind.engine import Engine, EngineOutput
from tests.support.both_engines import config_for

TIMEOUT = 180.0


class TokenEngine:
    """An engine in float32 that cuts prompts and keeps prefixes, or as ``config`` says; a context manager."""

    def __init__(
        self, directory: Path, config: PytorchEngineConfig | None = None, backend: str = "turbomind", **settings: Any
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

    def matched_tokens(self) -> float:
        """Return how many prompt tokens came from the cache so far."""
        return self.engine.metrics()["prefix_cache_hits_total"]


def relative_error(native: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the largest difference, row by row, relative to the row's largest value."""
    assert native.shape == reference.shape
    return float(((native - reference).abs().amax(dim=-1) / reference.abs().amax(dim=-1)).max())
