"""Limits of sampling that few engines have keep the tokens of an independent computation, and nothing else."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TypicalLogitsWarper

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.async_engine import AsyncEngine
from tests.support.tiny_models import make_tiny_llama

TOKENS = 400
TEMPERATURE = 1.5

Logits = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncEngine]:
    model = make_tiny_llama(tmp_path_factory.mktemp("limits"))
    with pipeline(str(model), backend_config=TurbomindEngineConfig(dtype="float32", cache_max_entry_count=64)) as made:
        yield made


def near_the_largest(sigma: float) -> Callable[[Logits], Logits]:
    """Return the tokens that top-n sigma (Tang et al., 2024) keeps."""
    return lambda logits: logits >= logits.max() - sigma * logits.std()


def typical(mass: float) -> Callable[[Logits], Logits]:
    """Return the tokens that `transformers` keeps of the distribution after temperature."""

    def kept(logits: Logits) -> Logits:
        scores = torch.from_numpy(logits / TEMPERATURE)[None]
        left: Logits = torch.isfinite(TypicalLogitsWarper(mass)(torch.zeros(1, 1, dtype=torch.long), scores))[0].numpy()
        return left

    return kept


@pytest.mark.parametrize(
    ("name", "value", "kept_of"),
    [
        *(("top_n_sigma", value, near_the_largest) for value in (0.5, 1.0, 2.0)),
        *(("typical_p", value, typical) for value in (0.1, 0.3, 0.9)),
    ],
)
def test_drawn_tokens_are_those_another_computation_keeps(
    pipe: AsyncEngine, name: str, value: float, kept_of: Callable[[float], Callable[[Logits], Logits]]
) -> None:
    logits = np.random.default_rng(0).normal(size=pipe.engine.vocab_size).astype(np.float32)
    logits[np.argsort(logits)[-12:]] += np.float32(1.5)

    def fixed(_: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(logits)

    exact = logits.astype(np.float64)
    kept = set(np.flatnonzero(kept_of(value)(exact)).tolist())
    limit: dict[str, Any] = {name: value}
    config = GenerationConfig(
        do_sample=True, temperature=TEMPERATURE, top_k=0, top_p=1.0, max_new_tokens=TOKENS, min_new_tokens=TOKENS,
        ignore_eos=True, random_seed=7, logits_processors=[fixed], **limit,
    )  # fmt: skip
    drawn = pipe("x", gen_config=config).token_ids
    shares = np.exp((exact - exact.max()) / TEMPERATURE)
    shares /= shares[list(kept)].sum()
    assert set(drawn) <= kept
    # Missing one of these by chance has a probability below 1e-8.
    assert {token for token in kept if shares[token] > 0.05} <= set(drawn)
