"""Room for the cache: evicted blocks in the host's memory, and blocks that are rounded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmdeploy import GenerationConfig, PytorchEngineConfig, Response, TurbomindEngineConfig, pipeline
from tests.support.prompts import CONVERSATIONS
from tests.support.tiny_models import make_tiny_llama

Config = TurbomindEngineConfig | PytorchEngineConfig

SAMPLED = GenerationConfig(
    max_new_tokens=33, do_sample=True, temperature=0.9, top_k=50, top_p=0.95, random_seed=5, logprobs=3, ignore_eos=True
)
BLOCK = 16
ROUNDS = 2


def turbomind(blocks: int, **more: Any) -> Config:
    return TurbomindEngineConfig(
        dtype="float32", cache_max_entry_count=blocks, cache_block_seq_len=BLOCK, session_len=1024,
        speculative_config="none", **more,
    )  # fmt: skip


def in_ranks(blocks: int, **more: Any) -> Config:
    return turbomind(blocks, tp=2, **more)


def of_bytes(blocks: int, **more: Any) -> Config:
    return turbomind(blocks, quant_policy=8, **more)


def pytorch(blocks: int, **more: Any) -> Config:
    return PytorchEngineConfig(
        dtype="float32", num_gpu_blocks=blocks, block_size=BLOCK, session_len=1024, enable_prefix_caching=True, **more
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", hidden_size=48, max_position_embeddings=2048)


def trace(response: Response) -> tuple[Any, ...]:
    return response.token_ids, [list(entry.items()) for entry in response.logprobs or []]


def run(directory: Path, config: Config) -> Iterator[tuple[list[Any], dict[str, float]]]:
    """Yield what all conversations answer and the engine's measurements, round after round."""
    with pipeline(str(directory), backend_config=config) as model:
        for _ in range(ROUNDS):
            yield [trace(response) for response in model(CONVERSATIONS, SAMPLED)], model.engine.metrics()


@pytest.mark.parametrize("config_of", [turbomind, in_ranks, of_bytes, pytorch])
def test_swapping_equals_recomputing_bit_for_bit(directory: Path, config_of: Any) -> None:
    recomputed = list(run(directory, config_of(30)))
    swapped = list(run(directory, config_of(30, num_cpu_blocks=2000)))
    assert [responses for responses, _ in swapped] == [responses for responses, _ in recomputed]
    without, measurements = recomputed[-1][1], swapped[-1][1]
    assert without["evictions_total"] > 0
    assert without["preemptions_total"] > 0
    assert without["swapped_out_total"] == without["host_blocks_total"] == 0
    assert measurements["evictions_total"] == 0
    assert measurements["host_blocks_total"] == 2000
    assert measurements["swapped_out_total"] >= measurements["swapped_in_total"] > 0
    assert measurements["host_blocks_used"] <= measurements["swapped_out_total"] - measurements["swapped_in_total"]
    # The second round finds all prompts of the first, but for the blocks that are not full.
    assert computed_of_prompts(swapped) < computed_of_prompts(recomputed)


def computed_of_prompts(rounds: list[Any]) -> float:
    """Return how many rows the last round computed before and alongside the responses' own."""
    measurements, before = rounds[-1][1], rounds[-2][1]
    generated = len(rounds[-1][0]) * SAMPLED.max_new_tokens
    return float(measurements["tokens_computed_total"] - before["tokens_computed_total"] - generated)


def test_more_than_the_host_has_is_refused(directory: Path) -> None:
    with pytest.raises(ValueError, match=r"num_cpu_blocks: 100000000 blocks take .* MiB, the host has"):
        pipeline(str(directory), backend_config=turbomind(60, num_cpu_blocks=100_000_000))


@pytest.mark.parametrize(("policy", "gain"), [(8, 1.9), (4, 3.5)])
def test_a_quantized_cache_holds_more_blocks_in_the_same_memory(
    default_model_dir: Path, policy: int, gain: float
) -> None:
    def blocks(quant_policy: int) -> float:
        # This many sessions that memory bounds the cache, not use: the default's fixed limit, since free memory varies.
        config = TurbomindEngineConfig(dtype="bfloat16", quant_policy=quant_policy, max_batch_size=100)
        with pipeline(str(default_model_dir), backend_config=config) as model:
            return model.engine.metrics()["cache_blocks_total"]

    assert blocks(policy) >= gain * blocks(0)


def test_a_quantized_model_with_a_quantized_cache_answers_the_same_from_the_prefix_cache(
    default_model_dir: Path,
) -> None:
    config = TurbomindEngineConfig(weight_bits=8, quant_policy=8, enable_prefix_caching=True, cache_max_entry_count=64)
    prompt = "Some facts about cities. " * 20 + "The capital of France is"
    with pipeline(str(default_model_dir), backend_config=config) as model:
        first, second = (model(prompt, GenerationConfig(max_new_tokens=8), do_preprocess=False) for _ in range(2))
        assert "Paris" in first.text
        assert first.token_ids == second.token_ids
        assert model.engine.metrics()["prefix_cache_hits_total"] >= 64
