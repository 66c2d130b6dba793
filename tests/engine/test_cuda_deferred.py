"""Deferred work of a device changes nothing: staging memory is written and freed late enough."""

from pathlib import Path

import pytest
import torch

from tests.support.emulated_cuda import emulated_cuda
from tests.support.tiny_models import make_small
from tests.support.token_engine import TokenEngine

PROMPTS = [list(range(100 + 7 * i, 145 + 9 * i)) for i in range(3)]
SMALL_HEADS = {"head_dim": 16, "sliding_window": 24}


def responses(directory: Path, **settings: object) -> list[tuple[list[int], torch.Tensor]]:
    """Return the tokens and logits of prompts that share prefixes, in chunks and steps."""
    with TokenEngine(directory, device="cuda", **settings) as engine:
        found = [engine.generate(prompt, 6, rows) for prompt in PROMPTS for rows in ("all", "generation")]
        engine.generate(PROMPTS[0] * 4, 3, "generation")  # what was cached goes to the host, or is lost
        return [*found, engine.generate(PROMPTS[1], 6, "generation")]


@pytest.mark.alike(most=2)
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Gemma2ForCausalLM"])
@pytest.mark.parametrize("seed", [1, 2])
def test_work_that_is_done_later_brings_the_same(tmp_path: Path, architecture: str, seed: int) -> None:
    overrides = SMALL_HEADS if architecture.startswith("Gemma") else {}
    directory = make_small(tmp_path / "model", architecture, **overrides)
    settings = {"cache_max_entry_count": 14, "num_cpu_blocks": 8, "session_len": 220}
    with emulated_cuda() as module:
        at_once = responses(directory, **settings)
        changed = module.calls_of("staging memory changed too early")
        module.defer_work(seed)
        later = responses(directory, **settings)
        assert module.calls_of("staging memory changed too early") == changed
    for (tokens, logits), (same_tokens, same_logits) in zip(at_once, later, strict=True):
        assert tokens == same_tokens
        assert torch.equal(logits, same_logits)
