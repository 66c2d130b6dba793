"""Every supported family computes what `transformers` computes, on tiny random checkpoints.

Compared are the logits of each row of a prompt that is computed in chunks, of each step after it, and of a second
prompt that begins with what the cache holds already. Both sides sum in float32, in different orders: they agree to
1e-4 of the largest value of their row.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.support import published
from tests.support.emulated_cuda import emulated_cuda
from tests.support.expert_models import DEEPSEEK, DEEPSEEK_MOE, GPT_OSS, GRANITE, HALF_ROPE, SHARED, TWO_GROUPS
from tests.support.expert_models import MODELS as EXPERT_MODELS
from tests.support.hybrid_models import MODELS as HYBRID_MODELS
from tests.support.hybrid_models import PUBLISHERS
from tests.support.layered_models import MODELS as LAYERED_MODELS
from tests.support.published import Publisher, as_is
from tests.support.tiny_models import LLAMA3_ROPE, make_tiny
from tests.support.token_engine import TokenEngine, relative_error
from tools.bench.random_model import write_tokenizer

TOLERANCE = 1e-4
PROMPT = [(37 * i * i + 11 * i) % 1900 + 100 for i in range(45)]
FURTHER = [(53 * i * i + 7 * i) % 1900 + 200 for i in range(12)]
VOCAB = 1024  # as few tokens as show the same: what a large vocabulary costs here is the tokenizer and the head


def reference_forward(model: Any, ids: list[int]) -> torch.Tensor:
    """Return the logits of each token."""
    logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


@dataclass(frozen=True)
class Case:
    """A model that `transformers` makes and runs, and how its checkpoint is published."""

    architecture: str
    overrides: dict[str, Any] = field(default_factory=dict)
    publish: Publisher = as_is
    forward: Callable[[Any, list[int]], torch.Tensor] = reference_forward
    attention: str = "eager"


YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 128}
TEMPERATURE_ROPE = YARN_ROPE | {"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.5}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
PAIR_FACTORS = [1.0, 1.5, 2.0, 4.0]
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": PAIR_FACTORS,
    "long_factor": [2 * factor for factor in PAIR_FACTORS],
    "original_max_position_embeddings": 128,
}
FOUR_HEADS = {"num_key_value_heads": 4}
UNTIED = {"tie_word_embeddings": False}
BIASED = {"attention_bias": True, "mlp_bias": True}
SMALL_HEADS = {"head_dim": 16}
SOFT_CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 6.0}
RW = {"multi_query": False, "alibi": True, "parallel_attn": False}
FALCON = {"num_key_value_heads": None, "ffn_hidden_size": 96, "alibi": False}
FIRST_FALCON = FALCON | {"ffn_hidden_size": 128}

CASES = {
    "Llama": Case("LlamaForCausalLM"),
    "Llama with one key/value head": Case("LlamaForCausalLM", {"num_attention_heads": 8, "num_key_value_heads": 1}),
    "Llama without grouping, untied": Case("LlamaForCausalLM", FOUR_HEADS | UNTIED),
    "Llama with biases": Case("LlamaForCausalLM", BIASED),
    "Llama with its own head_dim": Case("LlamaForCausalLM", {"head_dim": 24}),
    "Llama with linear rope": Case("LlamaForCausalLM", {"rope_parameters": LINEAR_ROPE}),
    "Llama 3.1": Case("LlamaForCausalLM", {"rope_parameters": LLAMA3_ROPE}),
    "Llama with YaRN": Case("LlamaForCausalLM", {"rope_parameters": YARN_ROPE}),
    "Mistral": Case("MistralForCausalLM", {"sliding_window": None}),
    "Qwen2": Case("Qwen2ForCausalLM"),
    "Qwen3": Case("Qwen3ForCausalLM", SMALL_HEADS),
    "SmolLM3": Case("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0], "pad_token_id": 0}),
    "Granite": Case("GraniteForCausalLM", GRANITE),
    "Granite SWA": Case(
        "GraniteSWAForCausalLM",
        GRANITE
        | {
            "num_hidden_layers": 3,
            "sliding_window": 24,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "layer_rope_theta": [0, 10000.0, 500.0],
        },
    ),
    "MiniCPM": Case("GraniteForCausalLM", GRANITE | SMALL_HEADS | {"attention_multiplier": 0.25}, published.minicpm),
    "HyperCLOVA X": Case("HyperCLOVAXForCausalLM", GRANITE | SMALL_HEADS),
    "Seed-OSS": Case("SeedOssForCausalLM", SMALL_HEADS | {"attention_bias": True, "mlp_bias": True}),
    "Arcee": Case("ArceeForCausalLM", BIASED),
    "CWM": Case(
        "CwmForCausalLM",
        SMALL_HEADS
        | {
            "sliding_window": 24,
            "layer_types": ["full_attention", "sliding_attention"],
            "rope_parameters": LLAMA3_ROPE,
        },
    ),
    "Jais 2": Case("Jais2ForCausalLM"),
    "XVERSE": Case("LlamaForCausalLM", FOUR_HEADS | UNTIED, published.xverse),
    "EXAONE 3.5": Case("LlamaForCausalLM", SMALL_HEADS | UNTIED | {"rope_parameters": LLAMA3_ROPE}, published.exaone),
    "ERNIE 4.5": Case("Ernie4_5ForCausalLM", SMALL_HEADS | {"use_bias": True}),
    "Command R+": Case("CohereForCausalLM", {"use_qk_norm": True, "pad_token_id": 0}),
    "OLMo": Case("OlmoForCausalLM", {"clip_qkv": 0.5, "attention_bias": True, "pad_token_id": 0} | UNTIED),
    "NanoChat": Case("NanoChatForCausalLM", UNTIED | {"pad_token_id": 0, "final_logit_softcapping": 4.0}),
    "OLMo 2": Case("Olmo2ForCausalLM", {"attention_bias": True, "pad_token_id": 0} | UNTIED),
    "OLMo 3": Case(
        "Olmo3ForCausalLM",
        {
            "num_hidden_layers": 3,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": YARN_ROPE,
            },
            "pad_token_id": 0,
        },
    ),
    "EXAONE 4 32B": Case(
        "Exaone4ForCausalLM",
        {
            "num_hidden_layers": 3,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "EXAONE 4 1.2B": Case("Exaone4ForCausalLM", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "Hunyuan": Case(
        "HunYuanDenseV1ForCausalLM",
        SMALL_HEADS
        | UNTIED
        | {
            "attention_bias": True,
            "rope_parameters": {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 10000.0},
        },
    ),
    "Apertus": Case("ApertusForCausalLM", SMALL_HEADS | UNTIED | {"rope_parameters": LLAMA3_ROPE, "pad_token_id": 0}),
    "BLOOM": Case("BloomForCausalLM", {"n_head": 6, "hidden_size": 48}),
    "MPT": Case(
        "MptForCausalLM",
        {
            "d_model": 48,
            "n_heads": 6,
            "n_layers": 2,
            "max_seq_len": 512,
            "attn_config": {"clip_qkv": 0.7, "softmax_scale": 0.5},
        },
        published.mpt,
    ),
    "GPT-2": Case("GPT2LMHeadModel"),
    "GPT-Neo": Case(
        "GPTNeoForCausalLM",
        {"num_heads": 4, "num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 24},
    ),
    "GPT-J": Case("GPTJForCausalLM", {"n_inner": 48, "rotary_dim": 4} | UNTIED),
    "CodeGen": Case("CodeGenForCausalLM", {"num_attention_heads": 8, "rotary_dim": 2} | UNTIED),
    "BioGPT": Case("BioGptForCausalLM"),
    "OPT": Case("OPTForCausalLM", {"ffn_dim": 64, "word_embed_proj_dim": 32, "pad_token_id": 0}),
    "Ministral 3": Case(
        "Ministral3ForCausalLM", SMALL_HEADS | {"rope_parameters": TEMPERATURE_ROPE, "pad_token_id": 0}
    ),
    "Command R": Case("CohereForCausalLM", {"logit_scale": 0.5, "attention_bias": True, "pad_token_id": 0}),
    "Command R7B": Case(
        "Cohere2ForCausalLM",
        {
            "num_hidden_layers": 3,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "pad_token_id": 0,
        },
    ),
    "North Vision": Case(
        "CohereCompassForCausalLM",
        {
            "sliding_window": 24,
            "layer_types": ["full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]},
                "full_attention": None,
            },
            "head_dim": 8,
            "pad_token_id": 0,
        },
    ),
    "StableLM": Case("StableLmForCausalLM", {"use_qkv_bias": True, "rope_parameters": HALF_ROPE} | UNTIED),
    "StableLM 12B": Case("StableLmForCausalLM", {"use_parallel_residual": True, "qk_layernorm": True}),
    "StableLM in parallel": Case("StableLmForCausalLM", {"use_parallel_residual": True}),
    "Phi-2": Case("PhiForCausalLM", UNTIED),
    "Phi-2 of the first release": Case("PhiForCausalLM", UNTIED, published.mixformer),
    "Pythia": Case("GPTNeoXForCausalLM", UNTIED),
    "GPT-NeoX in sequence": Case("GPTNeoXForCausalLM", {"use_parallel_residual": False, "attention_bias": False}),
    "GPT-NeoX Japanese": Case("GPTNeoXJapaneseForCausalLM", {"num_hidden_layers": 3}),
    "Llama-Nemotron Super": Case(
        "LlamaForCausalLM",
        UNTIED | {"num_hidden_layers": 5, "intermediate_size": 512},
        published.decilm,
        published.decilm_forward,
    ),
    "Nemotron": Case("NemotronForCausalLM", UNTIED | BIASED),
    "Helium": Case("HeliumForCausalLM", {"head_dim": 8, "attention_bias": True, "mlp_bias": True}),
    "Mistral with windows": Case("MistralForCausalLM", {"sliding_window": 24}),
    "Qwen2 with windows": Case(
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1, "num_hidden_layers": 3},
    ),
    "Gemma 2": Case("Gemma2ForCausalLM", SMALL_HEADS | {"sliding_window": 24, "query_pre_attn_scalar": 9} | SOFT_CAPS),
    "VaultGemma": Case(
        "VaultGemmaForCausalLM",
        SMALL_HEADS | {"sliding_window": 24, "query_pre_attn_scalar": 9, "attention_bias": True} | SOFT_CAPS,
    ),
    "Gemma 3": Case(
        "Gemma3ForCausalLM",
        SMALL_HEADS
        | {
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "num_hidden_layers": 3,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            },
        },
    ),
    "Gemma": Case("GemmaForCausalLM", SMALL_HEADS),
    "Phi-3": Case("Phi3ForCausalLM", {"sliding_window": None, "pad_token_id": 0} | UNTIED),
    "Phi-4-mini": Case(
        "Phi3ForCausalLM",
        {
            "sliding_window": None,
            "pad_token_id": 0,
            "head_dim": 16,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
        },
    ),
    "Phi-4-multimodal": Case("Phi3ForCausalLM", {"sliding_window": None, "pad_token_id": 0}, published.phi4_multimodal),
    "Phi-3.5": Case("Phi3ForCausalLM", {"sliding_window": 30, "pad_token_id": 0, "rope_parameters": LONG_ROPE}),
    "StarCoder2": Case("Starcoder2ForCausalLM", {"sliding_window": 24, "use_bias": True}),
    "GLM-4": Case("GlmForCausalLM", SMALL_HEADS | UNTIED | {"pad_token_id": 0}),
    "GLM-4-0414": Case("Glm4ForCausalLM", SMALL_HEADS | {"attention_bias": True, "pad_token_id": 0}),
    "ChatGLM3": Case(
        "GlmForCausalLM",
        SMALL_HEADS
        | UNTIED
        | {
            "pad_token_id": 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
        },
        published.chatglm,
    ),
    "Falcon 7B": Case("FalconForCausalLM", FALCON | {"multi_query": True, "parallel_attn": True}),
    "Falcon without multi-query": Case("FalconForCausalLM", FALCON | {"multi_query": False, "bias": True}),
    "Falcon in sequence": Case("FalconForCausalLM", FALCON | {"parallel_attn": False}),
    "Falcon 40B": Case("FalconForCausalLM", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "Falcon 11B": Case(
        "FalconForCausalLM",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "Falcon 7B of the first release": Case("FalconForCausalLM", FIRST_FALCON | {"multi_query": True}, published.rw),
    "Falcon 40B of the first release": Case(
        "FalconForCausalLM", FIRST_FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}, published.rw
    ),
    # The eager attention of transformers adds Falcon's biases twice: to the mask, and to the scores.
    "Falcon RW": Case("FalconForCausalLM", FALCON | RW | {"bias": True}, attention="sdpa"),
    "GPT-OSS as published": Case(
        "GptOssForCausalLM",
        GPT_OSS | {"hidden_size": 64, "intermediate_size": 96},
        published.mxfp4,
        published.mxfp4_forward,
    ),
    "DeepSeek-MoE": Case(
        "Qwen2MoeForCausalLM",
        UNTIED | DEEPSEEK_MOE,
        published.deepseek_moe,
        published.ungated_forward,
    ),
    "Ling-lite": Case("Qwen2MoeForCausalLM", UNTIED | DEEPSEEK_MOE, published.ling, published.ungated_forward),
    "Ling 2": Case(
        "Glm4MoeForCausalLM",
        UNTIED | SHARED | TWO_GROUPS | {"use_qk_norm": True, "head_dim": 16, "rope_parameters": HALF_ROPE},
        published.ling2,
    ),
    "Kimi K2": Case("DeepseekV3ForCausalLM", UNTIED | DEEPSEEK | {"n_group": 1, "topk_group": 1}, published.kimi),
    "MiMo": Case("Qwen2ForCausalLM", UNTIED, published.mimo),
    "StarCoder": Case("GPTBigCodeForCausalLM"),
    "GPT-BigCode without multi-query": Case("GPTBigCodeForCausalLM", {"multi_query": False}),
    "Ministral 8B": Case(
        "MinistralForCausalLM",
        SMALL_HEADS | {"sliding_window": 24, "layer_types": ["full_attention", "sliding_attention"]},
    ),
    "InternLM": Case(
        "LlamaForCausalLM",
        FOUR_HEADS
        | UNTIED
        | {"attention_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}},
        published.internlm,
    ),
    "InternLM2": Case(
        "LlamaForCausalLM",
        UNTIED | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        published.internlm2,
    ),
    "InternLM3": Case(
        "LlamaForCausalLM",
        BIASED | SMALL_HEADS | UNTIED | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}},
        published.internlm3,
    ),
    "Qwen": Case("Qwen2ForCausalLM", FOUR_HEADS | UNTIED, published.qwen),
    "Baichuan 7B": Case("LlamaForCausalLM", FOUR_HEADS | UNTIED, published.baichuan),
    "Baichuan 13B": Case("LlamaForCausalLM", FOUR_HEADS | UNTIED, published.baichuan_alibi, published.alibi_forward),
    "Baichuan2 7B": Case(
        "LlamaForCausalLM",
        FOUR_HEADS | UNTIED | {"vocab_size": 125696},
        published.baichuan,
        published.normalized_head_forward,
    ),
}

CASES |= {
    name: Case(architecture, overrides, PUBLISHERS.get(name, as_is))
    for name, (architecture, overrides) in (EXPERT_MODELS | HYBRID_MODELS | LAYERED_MODELS).items()
}
CASES["Qwen3.5 with stacks of experts"] = Case(*HYBRID_MODELS["Qwen3.5 with experts"], published.stacked_experts)
CASES["Step 3.5"] = Case(*LAYERED_MODELS["Step 3.7"], published.step)


def make_case(directory: Path, case: Case) -> int:
    """Make a case's checkpoint as `transformers` has it, and return the size of its vocabulary."""
    sizes = {"vocab_size": VOCAB, "bos_token_id": 256, "eos_token_id": 257} | case.overrides
    make_tiny(directory, case.architecture, **sizes)
    write_tokenizer(directory)
    return int(sizes["vocab_size"])


def within(vocab: int, ids: list[int]) -> list[int]:
    """Return token ids of a vocabulary of this size."""
    return [token % vocab for token in ids]


def check_logits(name: str, directory: Path, lengths: tuple[int, int] = (8, 4), **settings: Any) -> None:
    """Compare a case's logits with those of `transformers`, in chunks, in steps and after a cached prefix.

    ``directory``: where the checkpoint is made; ``lengths``: tokens of the two responses; ``settings``: of the engine.
    """
    case = CASES[name]
    vocab = make_case(directory, case)
    prompt, further = within(vocab, PROMPT), within(vocab, FURTHER)
    model = (
        getattr(transformers, case.architecture)
        .from_pretrained(directory, dtype=torch.float32, attn_implementation=case.attention)
        .eval()
    )
    case.publish(directory)
    with TokenEngine(directory, **settings) as engine, torch.no_grad():
        response, logits = engine.generate(prompt, lengths[0], "all")
        assert relative_error(logits, case.forward(model, prompt + response[:-1])) < TOLERANCE
        longer = prompt + response + further
        again, logits = engine.generate(longer, lengths[1], "generation")
        assert engine.matched_tokens() >= 48
        assert relative_error(logits, case.forward(model, longer + again[:-1])[len(longer) - 1 :]) < TOLERANCE


SHOWN = {(case.architecture, case.publish): name for name, case in reversed(CASES.items())}.values()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHOWN else pytest.mark.thorough) for name in CASES]
)
def test_logits_equal_transformers_in_chunks_in_steps_and_after_cached_prefixes(name: str, tmp_path: Path) -> None:
    check_logits(name, tmp_path / "model")


# Between them: windows, chunks, soft caps, two ropes, output norms; LayerNorm and parallel halves; ALiBi; half
# rotations; no input norms; norms after rotation; learned positions; states.
VARIED = ["OLMo 3", "Hunyuan", "GPT-2", "Gemma 2", "Gemma 3", "Falcon 40B", "Falcon RW", "GLM-4-0414", "Granite"]
VARIED += ["DeepSeek-V4", "Llama 4", "Trinity", "Cohere2 with experts", "Granite SWA", *HYBRID_MODELS, *LAYERED_MODELS]


@pytest.mark.alike(max_cases=12)
@pytest.mark.parametrize("name", VARIED)
def test_logits_are_bitwise_the_same_in_small_chunks_and_in_one(name: str, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    prompt = within(make_case(directory, CASES[name]), PROMPT)
    PUBLISHERS.get(name, as_is)(directory)
    found = []
    for rows in (20, 256):
        with TokenEngine(directory, num_tokens_per_iter=rows) as engine:
            found.append(engine.generate(prompt, 8, "all"))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_a_session_longer_than_the_learned_positions_is_refused(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "model", "GPT2LMHeadModel", max_position_embeddings=64)
    with pytest.raises(ValueError, match="session_len must be at most 64 positions that the model has learned"):
        TokenEngine(directory, session_len=65)


def test_a_device_without_sparse_attention_takes_the_sequences_in_which_it_is_dense(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    prompt = within(make_case(directory, CASES["DeepSeek-V3.2"]), PROMPT)[:8]
    with TokenEngine(directory, device="cpu", session_len=12) as engine:
        tokens, exact = engine.generate(prompt, 4)
    with emulated_cuda():
        with TokenEngine(directory, device="cuda", session_len=12) as engine:
            found, logits = engine.generate(prompt, 4)
        with pytest.raises(ValueError, match=r"session_len must be at most 12, got 13: .* is sparse"):
            TokenEngine(directory, device="cuda", session_len=13)
    assert found == tokens
    assert relative_error(logits, exact) < TOLERANCE
