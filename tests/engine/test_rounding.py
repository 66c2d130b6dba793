"""Room that a rounded cache gains; the loss of quality is in tests/tools/test_evaluate.py."""

from pathlib import Path

import pytest

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline


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


def test_bad_settings_are_refused_by_name(default_model_dir: Path) -> None:
    with pytest.raises(ValueError, match="weight_bits"):
        TurbomindEngineConfig(weight_bits=3)
    with pytest.raises(ValueError, match="quant_policy"):
        TurbomindEngineConfig(quant_policy=2)
