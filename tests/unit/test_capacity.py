"""Sizes, rooflines and plans, against counting, against hand-computed numbers and against each other."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmdeploy.capacity.devices import DEVICES, Device, device_of
from lmdeploy.capacity.plan import Efficiency, Load, Plan, Roofline, Storage, plan
from lmdeploy.capacity.sizes import Sizes
from lmdeploy.cli.main import main
from lmdeploy.errors import CheckpointError

LLAMA_3_8B = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-3-8b": ("LlamaConfig", LLAMA_3_8B),
    "qwen2-0.5b": (
        "Qwen2Config",
        {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
         "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True},
    ),
    "mixtral-8x7b": (
        "MixtralConfig",
        {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "qwen3-30b-a3b": (
        "Qwen3MoeConfig",
        {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
         "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
         "num_experts_per_tok": 8, "vocab_size": 151936},
    ),
    "deepseek-v2-lite": (
        "DeepseekV2Config",
        {"hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16,
         "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
         "num_experts_per_tok": 6, "first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": None,
         "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 102400},
    ),
    "deepseek-v4-flash": ("DeepseekV4Config", {"compress_ratios": [0, 0, *[4, 128] * 20, 4]}),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_transformers_makes(name: str) -> None:
    import torch
    import transformers

    kind, fields = PUBLISHED[name]
    config = getattr(transformers, kind)(**fields)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    # Norms and biases are left out.
    assert Sizes.of_config(config.to_dict()).parameters == pytest.approx(counted, rel=1e-3)


def test_a_token_of_llama_3_8b_caches_128_kib_and_one_of_deepseek_v2_lite_30() -> None:
    assert Sizes.of_config(LLAMA_3_8B).cached * 2 == 2 * 32 * 8 * 128 * 2 == 128 * 1024
    assert Sizes.of_config(PUBLISHED["deepseek-v2-lite"][1]).cached * 2 == 27 * (512 + 64) * 2


def test_layers_with_a_window_keep_that_much_of_a_sequence() -> None:
    gemma = LLAMA_3_8B | {"sliding_window": 512, "num_hidden_layers": 18}
    kinds = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(18)]
    for config in (gemma | {"layer_types": kinds}, gemma | {"sliding_window_pattern": 6}):
        sizes = Sizes.of_config(config)
        assert sizes.seen(8192) == pytest.approx((3 * 8192 + 15 * 512) / 18)
        assert sizes.seen(100) == pytest.approx(100)
    half = Sizes.of_config(LLAMA_3_8B | {"sliding_window": 4096, "model_type": "gemma2"})
    assert half.seen(8192) == pytest.approx(8192 * 3 / 4)
    assert Sizes.of_config(LLAMA_3_8B | {"sliding_window": 4096}).seen(8192) == pytest.approx(4096)
    assert Sizes.of_config(LLAMA_3_8B | {"sliding_window": 4096, "use_sliding_window": False}).seen(8192) == 8192
    # So more requests fit: 4.5 times as many of 8,192 tokens.
    load, device = Load(8000, 192), Device("a device", 80e9, 1e12, 1e15)
    windows = plan(Sizes.of_config(gemma | {"layer_types": kinds}), device, Storage(), load)
    without = plan(Sizes.of_config(LLAMA_3_8B | {"num_hidden_layers": 18}), device, Storage(), load)
    assert windows.sequences == pytest.approx(without.sequences * 18 * 8192 / (3 * 8192 + 15 * 512), rel=0.02)


def test_chunks_and_layers_of_other_sizes_are_counted() -> None:
    kinds = ["chunked_attention", "chunked_attention", "chunked_attention", "full_attention"] * 8
    llama4 = LLAMA_3_8B | {"attention_chunk_size": 8192, "layer_types": kinds}
    assert Sizes.of_config(llama4).seen(32768) == pytest.approx((8 * 32768 + 24 * 8192) / 32)
    # Three layers with a window, one that sees everything, and one of each that has no keys of its own.
    gemma4 = {
        "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "global_head_dim": 32, "num_global_key_value_heads": 1, "intermediate_size": 128, "vocab_size": 1000,
        "sliding_window": 512, "num_kv_shared_layers": 2,
        "layer_types": [*["sliding_attention"] * 3, "full_attention", "sliding_attention", "full_attention"],
    }  # fmt: skip
    sizes = Sizes.of_config(gemma4)
    assert sizes.cached == 3 * 2 * 2 * 16 + 2 * 32
    assert sizes.attention == 2 * 4 * (4 * 16 + 2 * 32)
    assert sizes.cached * sizes.seen(4096) == pytest.approx(3 * 2 * 2 * 16 * 512 + 2 * 32 * 4096)


def test_a_step_reads_the_experts_that_its_rows_choose() -> None:
    sizes = Sizes.of_config(PUBLISHED["mixtral-8x7b"][1])
    assert sizes.touched(1) == pytest.approx(sizes.active)
    assert sizes.touched(2) == pytest.approx(sizes.output + sizes.dense + (1 - (6 / 8) ** 2) * 8 * sizes.expert)
    assert sizes.touched(1000) == pytest.approx(sizes.output + sizes.dense + 8 * sizes.expert)


# 1 billion parameters in two layers' worth of matrices; numbers that can be checked in one's head.
SIZES = Sizes(
    embedding=10**8, output=10**8, is_tied=False, dense=8 * 10**8, expert=0, experts=0, experts_per_token=0,
    cached=50_000, attention=100_000,
)  # fmt: skip
DEVICE = Device("a device", memory=12e9, bandwidth=1e12, operations=100e12)
PERFECT = Efficiency(1.0, 1.0)


def test_a_step_takes_what_reading_or_computing_takes() -> None:
    roofline = Roofline(SIZES, DEVICE, Storage(), PERFECT)
    # 0.9 billion weights of 2 bytes at 1 TB/s; the cache of one token is 100,000 bytes.
    assert roofline.token_step(1, 0) == pytest.approx(1.8e-3)
    assert roofline.token_step(10, 1000) == pytest.approx(1.8e-3 + 10 * 1000 * 100_000 / 1e12)
    # 1000 rows of 2 x 0.9 billion operations at 100 TFLOP/s.
    assert roofline.token_step(1000, 0) == pytest.approx(1000 * 1.8e9 / 100e12)
    # The layers alone for each token of a prompt, attention to those before it, the output once.
    assert roofline.prompt_step(1000) == pytest.approx(
        2 * (1000 * 0.8e9 + 1000 * 1000 / 2 * 1e5 + 0.1e9) / 100e12, rel=1e-6
    )
    assert roofline.prompt_step(1000, 900) == pytest.approx((1.8e9 + 900 * 1e5) / 1e12)  # so few are read, not computed


def test_quantized_weights_have_scales_and_leave_the_tables_larger() -> None:
    assert Storage().total(SIZES) == 2 * SIZES.parameters
    assert Storage(weight_bits=8).total(SIZES) == pytest.approx(0.9e9 * 8.5 / 8 + 1e8 * 2)
    assert Storage(weight_bits=4).total(SIZES) == pytest.approx(0.8e9 * 4.5 / 8 + 1e8 * 8.5 / 8 + 1e8 * 2)
    four = Roofline(SIZES, DEVICE, Storage(weight_bits=4), PERFECT)
    assert four.token_step(1, 0) == pytest.approx((0.8e9 * 4.5 / 8 + 1e8 * 8.5 / 8) / 1e12)


@pytest.mark.parametrize(("bits", "measured"), [(16, 99), (8, 199), (4, 284)])
def test_the_estimate_of_a_processor_is_near_what_was_measured_there(bits: int, measured: float) -> None:
    # docs/benchmarks.md: SmolLM2-135M on 2 virtual cores of an AMD EPYC, 35 GB/s, one stream.
    fields = {
        "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True,
    }  # fmt: skip
    processor = Device("EPYC", 16e9, 35e9, 0.843e12)
    rate = plan(Sizes.of_config(fields), processor, Storage(bits), Load(64, 128)).single_rate
    assert rate == pytest.approx(measured, rel=0.12)


def made(**load: Any) -> Plan:
    return plan(SIZES, DEVICE, Storage(), Load(**{"prompt": 1000, "output": 100, **load}), PERFECT)


def test_a_plan_is_what_a_pencil_gets() -> None:
    result = made(rate=100.0)
    assert result.weights == 2e9
    assert result.cache_tokens == int(10e9 * 0.8 / 1e5) == 80_000
    assert result.sequences == 80_000 // 1100 == 72
    assert result.batch == 72
    step = (1.8e9 + 72 * 1050 * 1e5) / 1e12
    prompt = 2 * (1000 * 0.8e9 + 5e5 * 1e5 + 0.1e9) / 100e12
    rate = 1 / (prompt + 100 * step / 72)
    assert result.request_rate == pytest.approx(rate)
    assert result.output_rate == pytest.approx(100 * rate)
    assert result.replicas == -int(-100 // (0.8 * rate))
    assert made().replicas == 0


def test_files_hold_tokens_and_are_read_at_the_disks_rate() -> None:
    sizes = Sizes.of_config(LLAMA_3_8B)
    storage = Storage(cache_bits=8, disk_bytes=64 * 1024 * 1e6, disk_bandwidth=2e9)
    result = plan(sizes, DEVICES["H100"], storage, Load(1024, 256))
    assert result.disk_tokens == 1_000_000
    assert result.disk_seconds == pytest.approx(1024 * 64 * 1024 / 2e9)


def test_a_bound_on_the_time_between_tokens_is_kept_and_costs_replicas() -> None:
    free, bound = made(rate=1000.0), made(rate=1000.0, token_seconds=0.01)
    assert bound.token_seconds <= 0.01 < free.token_seconds
    assert bound.batch < free.batch
    assert bound.replicas > free.replicas


@given(st.floats(1, 5000), st.floats(1, 500), st.floats(0, 0.9), st.floats(0.1, 1000))
def test_found_prefixes_and_better_devices_never_need_more_replicas(
    prompt: float, response: float, prefix: float, rate: float
) -> None:
    load = {"prompt": prompt, "output": response, "rate": rate}
    assert made(**load, prefix=prefix).replicas <= made(**load).replicas
    twice = plan(SIZES, DEVICE.times(2), Storage(), Load(**load), PERFECT)
    assert twice.replicas <= made(**load).replicas


@pytest.mark.parametrize(
    ("load", "device", "message"),
    [
        ({}, Device("small", 1e9, 1e12, 1e14), "the weights take 2.0 GB and small has 1 GB"),
        (
            {},
            Device("full", 2.05e9, 1e12, 1e14),
            "the cache holds 400 tokens alongside the weights, a request needs 1100",
        ),
        ({"token_seconds": 1e-4}, DEVICE, "one response alone gets a token every"),
    ],
)
def test_what_does_not_fit_is_reported(load: dict[str, Any], device: Device, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(SIZES, device, Storage(), Load(1000, 100, **load), PERFECT)


def test_devices_are_found_in_any_case_and_others_named() -> None:
    assert device_of("h100") is DEVICES["H100"]
    with pytest.raises(ValueError, match="did you mean H100"):
        device_of("H10")


def test_the_command_plans_from_a_config_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    assert main(["plan", str(tmp_path), "--gpu", "H100", "--rate", "50"]) == 0
    message = capsys.readouterr().out
    assert "16.06 GB (8.03 billion parameters)" in message
    assert "128.0 KiB a token" in message
    assert main(["plan", str(tmp_path / "config.json"), "--gpu", "H100", "--json", "--quant-policy", "8"]) == 0
    assert json.loads(capsys.readouterr().out)["cache_token"] == 64 * 1024
    assert main(["plan", str(tmp_path), "--gpu", "H100", "--cache-dir-bytes", "131072e6", "--disk-bandwidth", "4"]) == 0
    assert "  on disk      1,000,000 tokens; a prompt is read in 33.6 ms\n" in capsys.readouterr().out
    assert main(["plan", str(tmp_path), "--memory", "64", "--bandwidth", "40", "--tflops", "1"]) == 0  # a CPU
    assert "of the layers keep" not in capsys.readouterr().out
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B | {"sliding_window": 4096, "model_type": "gemma2"}))
    assert main(["plan", str(tmp_path), "--gpu", "H100"]) == 0
    assert "tokens; 50% of the layers keep the last 4,096\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "words", "message"),
    [
        (None, ["--gpu", "H100"], "cannot be read; a model is a directory with a config.json"),
        ("{", ["--gpu", "H100"], "is not JSON"),
        ("[]", ["--gpu", "H100"], "must hold a JSON object"),
        ("{}", ["--gpu", "H100"], "has no hidden_size or n_embd or d_model"),
        (json.dumps(LLAMA_3_8B), [], "name a device with --gpu, or describe one: --memory, --bandwidth, --tflops"),
        (json.dumps(LLAMA_3_8B), ["--gpu", "Z9000"], "unknown device Z9000"),
        (json.dumps(LLAMA_3_8B), ["--gpu", "L4", "--weight-bits", "32"], "the weights take 32.1 GB"),
    ],
)
def test_a_bad_question_is_answered_with_a_sentence(
    config: str | None, words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert main(["plan", str(tmp_path), *words]) == 1
    error = capsys.readouterr().err
    assert error.startswith("lmdeploy plan: ")
    assert message in error


def test_a_missing_size_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        Sizes.read(tmp_path)
