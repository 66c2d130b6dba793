"""Configs check themselves, and durations and sizes are read as people write them."""

import json
import math
from typing import Any

import numpy as np
import pytest

from lmdeploy.messages import GenerationConfig, PytorchEngineConfig, TurbomindEngineConfig
from lmdeploy.pytorch.settings import engine_settings
from lmdeploy.turbomind.supported import reject_unsupported_engine
from lmdeploy.units import byte_count, duration, size_text

BAD_GENERATION: list[tuple[str, Any]] = [
    ("max_new_tokens", 0),
    ("max_new_tokens", -1),
    ("max_new_tokens", 2**31),
    ("max_new_tokens", 1.5),
    ("max_new_tokens", True),
    ("max_new_tokens", "8"),
    ("n", 0),
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", 10**400),
    ("temperature", "hot"),
    ("top_p", -0.1),
    ("top_p", 1.1),
    ("top_p", math.nan),
    ("top_k", -1),
    ("min_p", -0.1),
    ("min_p", math.nan),
    ("repetition_penalty", 0),
    ("repetition_penalty", -math.inf),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("frequency_penalty", math.nan),
    ("logit_bias", [1]),
    ("logit_bias", {-1: 0.5}),
    ("logit_bias", {"1": 0.5}),
    ("logit_bias", {1: math.inf}),
    ("random_seed", -1),
    ("random_seed", 2**64),
    ("stop_words", "stop"),
    ("stop_words", [""]),
    ("stop_words", [1]),
    ("bad_words", [None]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", 3),
    ("bad_token_ids", ["a"]),
    ("min_new_tokens", -1),
    ("min_new_tokens", 513),
    ("logprobs", -1),
    ("do_sample", 1),
    ("ignore_eos", None),
    ("output_logits", "some"),
]

BAD_ENGINE: list[tuple[str, Any]] = [
    ("dtype", "int8"),
    ("model_format", "ggml"),
    ("tp", 0),
    ("session_len", 0),
    ("max_batch_size", 0),
    ("cache_max_entry_count", 0.0),
    ("cache_max_entry_count", -0.5),
    ("cache_max_entry_count", math.nan),
    ("cache_chunk_size", -2),
    ("cache_block_seq_len", 0),
    ("enable_prefix_caching", "yes"),
    ("speculative_config", "fast"),
    ("weight_bits", 3),
    ("quant_policy", 3),
    ("quant_policy", True),
    ("rope_scaling_factor", -1.0),
    ("max_prefill_token_num", 0),
    ("num_tokens_per_iter", -1),
    ("max_prefill_iters", 0),
    ("revision", 1),
]


@pytest.mark.parametrize(("field", "value"), BAD_GENERATION)
def test_generation_config_refuses_a_bad_value_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{field}.* must be .*got "):
        GenerationConfig(**{field: value})


@pytest.mark.parametrize(("field", "value"), BAD_ENGINE)
def test_engine_config_refuses_a_bad_value_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must be .*got "):
        TurbomindEngineConfig(**{field: value})


@pytest.mark.parametrize("kind", [ValueError, AssertionError])  # LMDeploy's classes raise the latter
def test_the_message_says_what_was_expected_and_what_came(kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^max_new_tokens must be >= 1, got 0$"):
        GenerationConfig(max_new_tokens=0)


def test_all_bad_values_are_reported_at_once() -> None:
    with pytest.raises(ValueError, match=r"top_p .*; top_k .*; temperature "):
        GenerationConfig(top_p=2.0, top_k=-1, temperature=-1.0)


def test_extreme_but_legal_values_are_accepted() -> None:
    GenerationConfig(
        temperature=0, top_p=1, top_k=0, min_p=1.0, random_seed=2**64 - 1, max_new_tokens=1, min_new_tokens=1
    )
    GenerationConfig(temperature=np.float32(0.5), top_k=np.int64(3))  # type: ignore[arg-type]


def test_the_engine_is_reported_the_pytorch_engines_settings_by_its_own_names() -> None:
    config = PytorchEngineConfig(
        block_size=32, num_gpu_blocks=7, num_cpu_blocks=9, device_type="cpu", custom_module_map={"A": "b.C"},
        eager_mode=True,
    )  # fmt: skip
    reported = engine_settings(config)
    expected = {
        "cache_block_seq_len": 32, "cache_max_entry_count": 7, "num_cpu_blocks": 9, "device": "cpu", "eager_mode": True,
    }  # fmt: skip
    assert {name: reported[name] for name in expected} == expected
    assert json.loads(reported["custom_module_map"]) == {"A": "b.C"}
    assert engine_settings(PytorchEngineConfig(custom_module_map="/a/map.py"))["custom_module_map"] == "/a/map.py"


def test_defaults_are_supported() -> None:
    reject_unsupported_engine(TurbomindEngineConfig(model_format="meta_llama", session_len=8, dtype="float16"))


HUGE = 10**400


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(300, 300), (-1, -1), (0.5, 0.5), ("90", 90), ("-1", -1), ("0", 0), ("5m", 300), ("1h30m", 5400), ("1.5h", 5400),
     ("-1m", -60), ("0s", 0), ("-0m", 0), ("100ms", 0.1), (".5s", 0.5), ("+2s", 2), (" 24h ", 86400)],
)  # fmt: skip
def test_a_duration_is_a_number_or_what_go_writes(written: str | float, seconds: float) -> None:
    assert duration("keep_alive", written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written", ["", "5 minutes", "5min", "m", "1d", "--1", "1m-5s", True, math.nan, math.inf, "inf", HUGE, "1e99h"]
)
def test_other_durations_are_refused_by_name(written: str | float) -> None:
    with pytest.raises(ValueError, match="keep_alive must be seconds or a duration such as 5m"):
        duration("keep_alive", written)


@pytest.mark.parametrize(
    ("written", "count"),
    [("8GB", 8 * 10**9), ("8g", 8 * 10**9), ("512MiB", 512 << 20), ("1.5 GiB", 3 << 29), ("2000", 2000), ("1kB", 1000)],
)
def test_a_size_is_a_number_of_bytes_with_or_without_a_unit(written: str, count: int) -> None:
    assert byte_count("--models-memory", written) == count


@pytest.mark.parametrize("written", ["", "0", "-1GB", "8XB", "GB", "8 G B", "0.1"])
def test_other_sizes_are_refused_by_name(written: str) -> None:
    with pytest.raises(ValueError, match="--models-memory must be a size such as 8GB"):
        byte_count("--models-memory", written)


def test_a_size_is_shown_in_the_unit_that_suits_it() -> None:
    assert (size_text(3_450_000), size_text(1_239_000_000)) == ("3.5 MB", "1.24 GB")
