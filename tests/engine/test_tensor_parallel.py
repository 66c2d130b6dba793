"""A model spread over several ranks (`tp`) computes what `transformers` computes.

The ranks run on the CPU here; tests/engine/test_cuda_engine.py has them on CUDA.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.cli.main import main
from tests.engine.test_model_families import PROMPT, check_logits
from tests.support.both_engines import WITHOUT_REUSE
from tests.support.prompts import CONVERSATIONS
from tests.support.quantized_checkpoints import Scheme, quantize_checkpoint
from tests.support.scaled_checkpoints import Form
from tests.support.tiny_models import make_tiny, make_tiny_llama
from tests.support.token_engine import TokenEngine, relative_error

# Every way to divide: heads in groups and alone, one key/value head on all ranks, biases of each kind, parallel halves
# with one norm and two, output norms, scaled residuals, windows, soft caps, ALiBi, sinks, experts with and without
# shared ones, latent attention, layers of several kinds, blocks that layers share.
DIVIDED = [
    ("Llama", 2),
    ("Llama with one key/value head", 4),
    ("Llama without grouping, untied", 4),
    ("Llama with biases", 2),
    ("Llama with its own head_dim", 2),
    ("Qwen2", 2),
    ("Qwen3", 4),
    ("Granite", 2),
    ("Gemma 2", 2),
    ("Phi-3", 2),
    ("StarCoder2", 2),
    ("ChatGLM3", 2),
    ("Falcon 7B", 2),
    ("Falcon without multi-query", 2),
    ("Falcon 40B", 2),
    ("Falcon RW", 2),
    ("InternLM2", 2),
    ("Baichuan 13B", 2),
    ("Baichuan2 7B", 2),
    ("Mixtral", 2),
    ("Qwen2-MoE", 2),
    ("DeepSeek-MoE", 2),
    ("Phi-3.5-MoE", 2),
    ("DBRX", 2),
    ("GPT-OSS", 2),
    ("GPT-OSS as published", 2),
    ("DeepSeek-V2-Lite", 2),
    ("DeepSeek-V2", 2),
    ("DeepSeek-V3", 2),
    ("MiniCPM3", 2),
    ("Gemma 4 E2B", 2),
    ("Gemma 4 26B", 2),
    ("MiMo-V2-Flash", 2),
    ("Laguna", 2),
    ("Zamba2 with further adapters", 2),
    ("Step 3.7", 2),
]


@pytest.mark.alike(max_cases=12)
@pytest.mark.parametrize(("name", "tp"), DIVIDED)
def test_logits_equal_transformers_in_chunks_in_steps_and_after_cached_prefixes(
    name: str, tp: int, tmp_path: Path
) -> None:
    check_logits(name, tmp_path / "model", tp=tp)


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"dtype": "bfloat16"}, 0.02),
        ({"dtype": "float16"}, 0.02),
        ({"dtype": "float32", "quant_policy": 8}, 1e-4),
        ({"dtype": "float32", "quant_policy": 4}, 1e-4),
        ({"dtype": "float32", "weight_bits": 8}, 1e-4),
        ({"dtype": "float32", "weight_bits": 4}, 1e-4),
    ],
    ids=str,
)
def test_what_is_rounded_is_rounded_as_on_one_rank(settings: dict[str, Any], limit: float, tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "model", hidden_size=128, intermediate_size=160, num_hidden_layers=1)

    def logits(tp: int) -> torch.Tensor:
        with TokenEngine(directory, tp=tp, **settings) as engine:
            return engine.generate(PROMPT, 1)[1]

    assert relative_error(logits(2), logits(1)) < limit


SIZES = {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2}


def difference_of_ranks(directory: Path) -> float:
    """Return how far the logits of two ranks are from those of one."""

    def logits(tp: int) -> torch.Tensor:
        with TokenEngine(directory, tp=tp) as engine:
            return engine.generate(PROMPT, 1)[1]

    return relative_error(logits(2), logits(1))


def test_a_vocabulary_of_any_size_is_divided(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "model", vocab_size=49_155, num_hidden_layers=1)
    assert difference_of_ranks(directory) < 1e-5


# Codes are multiplied as on one rank, so sums differ in their order alone; were a layer read as numbers, its
# activations would not be rounded, which moves these models by 1 %.
SAME_CODES = 1e-3


@pytest.mark.parametrize(
    "form",
    [
        Scheme(group_size=64),
        Scheme(group_size=64, unquantized=("lm_head", "k_proj", "gate_proj")),
        Scheme("gptq", group_size=64),
        Scheme("gptq", bits=8, sym=True, checkpoint_format="gptq_v2"),
        Scheme("gptq", desc_act=True, unquantized=("lm_head", "o_proj")),
        Scheme("gptq", bits=8, group_size=64, desc_act=True, unquantized=("lm_head", "o_proj", "up_proj")),
        Form("fp8", torch.float8_e4m3fn, "block", "weight_scale_inv", block=(48, 64)),
        Form("compressed-tensors", torch.float8_e4m3fn, "channel"),
        Form("smooth_quant", torch.int8, "channel", "scale"),
    ],
    ids=str,
)
def test_stored_codes_are_divided(form: Any, tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "source", seed=1, attention_bias=True, initializer_range=0.05, **SIZES)
    quantize_checkpoint(source, tmp_path / "model", form)
    assert difference_of_ranks(tmp_path / "model") < SAME_CODES


def test_stored_codes_of_experts_are_divided(tmp_path: Path) -> None:
    source = make_tiny(
        tmp_path / "source",
        "Qwen2MoeForCausalLM",
        **SIZES | {"num_hidden_layers": 1, "initializer_range": 0.05, "num_experts": 4, "num_experts_per_tok": 2},
        moe_intermediate_size=96,
        shared_expert_intermediate_size=64,
    )
    quantize_checkpoint(source, tmp_path / "model", Scheme("gptq", desc_act=True, unquantized=("lm_head", "o_proj")))
    assert difference_of_ranks(tmp_path / "model") < SAME_CODES


def test_heads_whose_inputs_are_out_of_order_become_numbers(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "source", initializer_range=0.05, **SIZES)
    quantize_checkpoint(source, tmp_path / "model", Scheme("gptq", desc_act=True))
    assert SAME_CODES < difference_of_ranks(tmp_path / "model") < 0.03


def responses(directory: Path, tp: int, *, at_once: bool) -> list[tuple[list[int], list[dict[int, float]]]]:
    """Return tokens and log probabilities of the conversations' responses, computed together or one after another."""
    config = TurbomindEngineConfig(dtype="float32", cache_max_entry_count=800, session_len=1024, tp=tp, **WITHOUT_REUSE)
    sampled = GenerationConfig(max_new_tokens=16, do_sample=True, top_k=0, random_seed=5, logprobs=3, ignore_eos=True)
    with pipeline(str(directory), backend_config=config) as pipe:
        found = pipe(CONVERSATIONS, sampled) if at_once else [pipe(text, sampled) for text in CONVERSATIONS]
        return [(response.token_ids, response.logprobs) for response in found]


def test_responses_are_bitwise_the_same_alone_and_in_a_crowd_and_those_of_one_rank(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "model", max_position_embeddings=2048)
    alone = responses(directory, 2, at_once=False)
    assert responses(directory, 2, at_once=True) == alone
    assert [tokens for tokens, _ in responses(directory, 1, at_once=True)] == [tokens for tokens, _ in alone]


@pytest.mark.parametrize(
    ("tp", "overrides", "reason"),
    [
        (3, {}, "num_heads 4 is no multiple of it, and num_kv_heads 2 is neither a multiple nor a divisor of it"),
        (4, {"intermediate_size": 24}, "intermediate_size 24 has fewer groups of 8 than that"),
    ],
)
def test_a_number_of_ranks_that_does_not_fit_the_model_is_refused(
    tp: int, overrides: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    directory = make_tiny_llama(tmp_path / "model", **overrides)
    with pytest.raises(ValueError, match=f"tp={tp} does not fit LlamaForCausalLM: {reason}; choose another tp"):
        TokenEngine(directory, tp=tp)


def test_groups_that_share_a_scale_are_not_cut(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "model")
    with pytest.raises(ValueError, match=r"attention\.o would be cut inside a group of 32 inputs"):
        TokenEngine(directory, tp=4, weight_bits=8)


def test_the_command_line_spreads_a_model_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make_tiny_llama(tmp_path / "model")
    assert main(["chat", str(directory), "--tp", "3"]) == 1
    assert "tp=3 does not fit LlamaForCausalLM" in capsys.readouterr().err
