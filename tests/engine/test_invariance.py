"""A request's tokens and log probabilities are bitwise the same whatever else happens in the engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmdeploy import GenerationConfig, Response, TurbomindEngineConfig, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from tests.support.prompts import CONVERSATIONS
from tests.support.tiny_models import make_tiny_llama

SAMPLED = GenerationConfig(
    max_new_tokens=24, do_sample=True, temperature=0.9, top_k=0, top_p=0.95, random_seed=5, logprobs=3, ignore_eos=True
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", hidden_size=48, max_position_embeddings=2048)


def engine(directory: Path, **settings: Any) -> AsyncEngine:
    config = {
        "dtype": "float32",
        "cache_max_entry_count": 1600,
        "cache_block_seq_len": 16,
        "session_len": 1024,
        **settings,
    }
    return pipeline(str(directory), backend_config=TurbomindEngineConfig(**config))


def trace(response: Response) -> tuple[Any, ...]:
    """Return everything that must not change, exactly."""
    return response.token_ids, [list(entry.items()) for entry in response.logprobs or []], response.text


@pytest.fixture(scope="module")
def alone(directory: Path) -> Iterator[list[tuple[Any, ...]]]:
    """What every conversation answers when it is the only one."""
    with engine(directory) as model:
        yield [trace(model(conversation, SAMPLED)) for conversation in CONVERSATIONS]


def test_in_a_batch(directory: Path, alone: list[tuple[Any, ...]]) -> None:
    with engine(directory) as model:
        assert [trace(answer) for answer in model(CONVERSATIONS, SAMPLED)] == alone


def test_with_prompts_in_small_chunks(directory: Path, alone: list[tuple[Any, ...]]) -> None:
    with engine(directory, num_tokens_per_iter=24, max_batch_size=8) as model:
        assert [trace(answer) for answer in model(CONVERSATIONS, SAMPLED)] == alone


def test_with_prefix_hits(directory: Path, alone: list[tuple[Any, ...]]) -> None:
    with engine(directory, enable_prefix_caching=True) as model:
        for _ in range(2):
            assert [trace(answer) for answer in model(CONVERSATIONS, SAMPLED)] == alone
        assert model.engine.metrics()["tokens_matched_total"] > 1000


def test_through_preemption_and_eviction(directory: Path, alone: list[tuple[Any, ...]]) -> None:
    with engine(directory, cache_max_entry_count=60, enable_prefix_caching=True) as model:
        for _ in range(2):
            assert [trace(answer) for answer in model(CONVERSATIONS, SAMPLED)] == alone
        figures = model.engine.metrics()
        assert figures["evictions_total"] > 0
        assert figures["preemptions_total"] > 0


def test_with_another_number_of_threads(
    directory: Path, alone: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with engine(directory) as model:
        assert [trace(answer) for answer in model(CONVERSATIONS, SAMPLED)] == alone


def test_a_shared_prefix_over_32_requests_costs_a_tenth_and_changes_no_answer(default_model_dir: Path) -> None:
    prefix = "The history of bread is long. " * 150
    prompts = [f"{prefix}\nQuestion {index}: who baked?" for index in range(32)]
    config = GenerationConfig(max_new_tokens=4)

    def answers(enable: bool, asked: list[str]) -> tuple[list[str], float, int]:
        settings = TurbomindEngineConfig(enable_prefix_caching=enable, cache_max_entry_count=1200, session_len=2048)
        with pipeline(str(default_model_dir), backend_config=settings) as model:
            first = model(asked[0], config)  # the cache learns the prefix from the first
            texts = [first.text] + [one.text for one in model(asked[1:], config)]
            return texts, model.engine.metrics()["tokens_computed_total"], first.input_token_len

    cached, computed, prompt_len = answers(True, prompts)
    plain, full_cost, _ = answers(False, prompts[:3])
    assert prompt_len > 1000
    assert full_cost >= 3 * prompt_len
    assert computed * 10 < 32 * prompt_len
    assert cached[:3] == plain
