"""`top_n_sigma` keeps what lies within this many standard deviations of the largest logit, and nothing else."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from tests.support.tiny_models import make_tiny_llama

TOKENS = 400


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("sigma"))


@pytest.mark.parametrize("n_sigma", [0.5, 1.0, 2.0])
def test_drawn_tokens_are_those_a_float64_computation_keeps(model: Path, n_sigma: float) -> None:
    with pipeline(str(model), backend_config=TurbomindEngineConfig(dtype="float32", cache_max_entry_count=64)) as pipe:
        vocab = pipe.engine.vocab_size
        logits = np.random.default_rng(0).normal(size=vocab).astype(np.float32)
        logits[np.argsort(logits)[-12:]] += np.float32(1.5)

        def fixed(_: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(logits)

        exact = logits.astype(np.float64)
        kept = set(np.flatnonzero(exact >= exact.max() - n_sigma * exact.std()).tolist())
        config = GenerationConfig(
            do_sample=True, temperature=1.5, top_k=0, top_p=1.0, top_n_sigma=n_sigma, max_new_tokens=TOKENS,
            min_new_tokens=TOKENS, ignore_eos=True, random_seed=7, logits_processors=[fixed],
        )  # fmt: skip
        drawn = pipe("x", gen_config=config).token_ids
    shares = np.exp((exact - exact.max()) / 1.5)
    shares /= shares[list(kept)].sum()
    assert set(drawn) <= kept
    # Missing one of these by chance has a probability below 1e-8.
    assert {token for token in kept if shares[token] > 0.05} <= set(drawn)
