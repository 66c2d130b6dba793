"""A request's tokens and log probabilities are bitwise the same whatever else happens in the engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmdeploy import GenerationConfig, Response, pipeline
from lmdeploy.offline.async_engine import AsyncEngine
from tests.support.both_engines import BACKENDS, config_for
from tests.support.prompts import CONVERSATIONS
from tests.support.tiny_models import make_tiny_llama

SAMPLED = GenerationConfig(
    max_new_tokens=24, do_sample=True, temperature=0.9, top_k=50, top_p=0.95, random_seed=5, logprobs=3, ignore_eos=True
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", hidden_size=48, max_position_embeddings=2048)


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def conversations(backend: str) -> list[Any]:
    """Enough of them for the second engine's batches; what it does not share with the first is how a step is run."""
    return CONVERSATIONS if backend == "turbomind" else CONVERSATIONS[::4]


def engine(backend: str, directory: Path, **settings: Any) -> AsyncEngine:
    config = {
        "dtype": "float32",
        "cache_max_entry_count": 1600,
        "cache_block_seq_len": 16,
        "session_len": 1024,
        **settings,
    }
    return pipeline(str(directory), backend_config=config_for(backend, **config))


def trace(response: Response) -> tuple[Any, ...]:
    """Return everything that must not change, exactly."""
    return response.token_ids, [list(entry.items()) for entry in response.logprobs or []], response.text


def traces(model: AsyncEngine, conversations: list[Any]) -> list[tuple[Any, ...]]:
    """Return the responses of a batch."""
    return [trace(response) for response in model(conversations, SAMPLED)]


@pytest.fixture(scope="module")
def roomy(backend: str, directory: Path) -> Iterator[AsyncEngine]:
    """An engine that has room for everything at once, and keeps nothing."""
    with engine(backend, directory) as model:
        yield model


@pytest.fixture(scope="module")
def keeping(backend: str, directory: Path) -> Iterator[AsyncEngine]:
    """An engine that keeps prefixes."""
    with engine(backend, directory, enable_prefix_caching=True) as model:
        yield model


@pytest.fixture(scope="module")
def alone(roomy: AsyncEngine, conversations: list[Any]) -> list[tuple[Any, ...]]:
    """Responses of each conversation by itself."""
    return [trace(roomy(conversation, SAMPLED)) for conversation in conversations]


def test_in_a_batch(roomy: AsyncEngine, conversations: list[Any], alone: list[tuple[Any, ...]]) -> None:
    assert traces(roomy, conversations) == alone


def test_with_prompts_in_small_chunks(
    backend: str, directory: Path, conversations: list[Any], alone: list[tuple[Any, ...]]
) -> None:
    with engine(backend, directory, num_tokens_per_iter=24, max_batch_size=8) as model:
        assert traces(model, conversations) == alone


def test_with_prefix_hits(keeping: AsyncEngine, conversations: list[Any], alone: list[tuple[Any, ...]]) -> None:
    for _ in range(2):
        assert traces(keeping, conversations) == alone
    assert keeping.engine.metrics()["prefix_cache_hits_total"] > 30 * len(conversations)


def test_through_preemption_and_eviction(
    backend: str, directory: Path, conversations: list[Any], alone: list[tuple[Any, ...]]
) -> None:
    blocks = 60 if len(conversations) == len(CONVERSATIONS) else 12
    with engine(backend, directory, cache_max_entry_count=blocks, enable_prefix_caching=True) as model:
        for _ in range(2):
            assert traces(model, conversations) == alone
        measurements = model.engine.metrics()
        assert measurements["evictions_total"] > 0
        assert measurements["preemptions_total"] > 0


def test_with_another_number_of_threads(
    backend: str,
    directory: Path,
    conversations: list[Any],
    alone: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with engine(backend, directory) as model:
        assert traces(model, conversations) == alone


def test_a_shared_prefix_over_32_requests_costs_a_tenth_and_changes_no_response(
    keeping: AsyncEngine, roomy: AsyncEngine
) -> None:
    prefix = "The history of bread is long. " * 110
    prompts = [f"{prefix}\nQuestion {index}: who baked?" for index in range(32)]
    config = GenerationConfig(max_new_tokens=4, ignore_eos=True)

    def computed(model: AsyncEngine, requested: list[str]) -> tuple[list[Response], float]:
        before = model.engine.metrics()["tokens_computed_total"]
        first = model(requested[0], config)  # the cache learns the prefix from the first
        responses = [first, *model(requested[1:], config)]
        return responses, model.engine.metrics()["tokens_computed_total"] - before

    cached, cost = computed(keeping, prompts)
    baseline, full_cost = computed(roomy, prompts[:3])
    prompt_len = cached[0].input_token_len
    assert prompt_len > 700
    assert full_cost >= 3 * prompt_len
    assert cost * 10 < 32 * prompt_len
    assert [response.token_ids for response in cached[:3]] == [response.token_ids for response in baseline]
