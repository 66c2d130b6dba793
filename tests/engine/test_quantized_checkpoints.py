"""Models stored as AWQ and GPTQ codes against `transformers` run on the numbers that the codes stand for."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.tokenizer import Tokenizer
from tests.support.quantized_checkpoints import Scheme, quantize_checkpoint
from tests.support.tiny_models import make_tiny, make_tiny_llama

SIZES = {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2}
WEIGHTS = "model.safetensors"
PROMPT = "Once upon a time, in a land far away, there lived"
VARIANTS = {
    "awq": Scheme(group_size=128),
    "awq whole row": Scheme(group_size=-1),
    "awq with its lm_head": Scheme(unquantized=()),
    "awq without k and gate": Scheme(unquantized=("lm_head", "k_proj", "gate_proj")),
    "gptq": Scheme("gptq", group_size=64),
    "gptq 8 bits symmetric": Scheme("gptq", bits=8, sym=True, group_size=128, checkpoint_format="gptq_v2"),
    "gptq ordered": Scheme("gptq", desc_act=True),
    "gptq 3 bits": Scheme("gptq", bits=3, group_size=128),
    "gptq 3 bits ordered, whole row": Scheme("gptq", bits=3, group_size=-1, sym=True, desc_act=True),
    "gptq 3 bits second format": Scheme("gptq", bits=3, checkpoint_format="gptq_v2"),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model in float32 with a bias in its attention and its own output layer."""
    directory = tmp_path_factory.mktemp("tiny") / "model"
    return make_tiny_llama(directory, attention_bias=True, tie_word_embeddings=False, initializer_range=0.05, **SIZES)


def logits_of(directory: Path, **settings: Any) -> torch.Tensor:
    """Return the engine's logits of the prompt, ``[tokens, vocab]``."""
    config = TurbomindEngineConfig(**{"dtype": "float32", "cache_max_entry_count": 16, **settings})
    with pipeline(str(directory), backend_config=config) as model:
        response = model(PROMPT, GenerationConfig(max_new_tokens=1, output_logits="all"), do_preprocess=False)
        return torch.as_tensor(response.logits)[: response.input_token_len]


def reference_of(source: Path, values: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the logits of `transformers` with some weights replaced."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    model.load_state_dict(values, strict=False)
    with torch.no_grad():
        return model(torch.tensor([Tokenizer(str(source)).encode(PROMPT)])).logits[0]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).square().mean().sqrt() / b.square().mean().sqrt())


# About twice what 8 bits for the activations cost in this model; codes in a wrong order are off by more than 1.
LIMIT = 0.02


@pytest.mark.parametrize("name", VARIANTS)
def test_the_logits_are_those_of_the_stored_numbers(name: str, source: Path, tmp_path: Path) -> None:
    values = quantize_checkpoint(source, tmp_path / "model", VARIANTS[name])
    assert distance(logits_of(tmp_path / "model"), reference_of(source, values)) < LIMIT


def test_fused_layers_are_read_from_their_codes(tmp_path: Path) -> None:
    source = make_tiny(tmp_path / "source", "Phi3ForCausalLM", initializer_range=0.05, pad_token_id=0, **SIZES)
    values = quantize_checkpoint(source, tmp_path / "model", Scheme("gptq", desc_act=True))
    assert any("qkv_proj" in name for name in values)
    assert distance(logits_of(tmp_path / "model"), reference_of(source, values)) < LIMIT


EXPERTS = {
    "num_hidden_layers": 1,
    "initializer_range": 0.05,
    "hidden_size": 64,
    "moe_intermediate_size": 96,
    "num_experts_per_tok": 2,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
}


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("Qwen2MoeForCausalLM", EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 64}),
        ("DeepseekV2ForCausalLM", EXPERTS | LATENT | {"n_routed_experts": 4, "n_shared_experts": 1}),
    ],
)
def test_experts_are_multiplied_as_codes(architecture: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    source = make_tiny(tmp_path / "source", architecture, **overrides)
    values = quantize_checkpoint(source, tmp_path / "model", Scheme())
    assert any("experts.3.down_proj" in name for name in values)
    # `transformers` keeps experts stacked, so it reads the numbers from a checkpoint.
    unquantized = Path(shutil.copytree(source, tmp_path / "plain"))
    save_file(load_file(source / WEIGHTS) | values, unquantized / WEIGHTS, metadata={"format": "pt"})
    assert distance(logits_of(tmp_path / "model"), reference_of(unquantized, {})) < LIMIT


def test_codes_stay_as_they_are_alongside_quantized_weights_and_a_quantized_cache(source: Path, tmp_path: Path) -> None:
    values = quantize_checkpoint(source, tmp_path / "model", Scheme())
    exact = reference_of(source, values)
    # 4 bits for what is left, the output layer's 8; were the codes rounded again to 4 bits, this would be 0.1.
    assert distance(logits_of(tmp_path / "model", weight_bits=4), exact) < LIMIT
    assert distance(logits_of(tmp_path / "model", weight_bits=8, quant_policy=8, dtype="bfloat16"), exact) < LIMIT


def test_the_prefix_cache_gives_the_same_response(source: Path, tmp_path: Path) -> None:
    quantize_checkpoint(source, tmp_path / "model", Scheme("gptq", sym=True))
    config = TurbomindEngineConfig(enable_prefix_caching=True, cache_max_entry_count=16, cache_block_seq_len=16)
    with pipeline(str(tmp_path / "model"), backend_config=config) as model:
        first, second = (
            model(PROMPT * 4, GenerationConfig(max_new_tokens=8, ignore_eos=True), do_preprocess=False)
            for _ in range(2)
        )
        assert model.engine.metrics()["prefix_cache_hits_total"] >= 32
    assert first.token_ids == second.token_ids


@pytest.mark.parametrize(("scheme", "wrong"), [(Scheme(), "gptq"), (Scheme("gptq"), "awq"), (Scheme(), "hf")])
def test_a_model_format_that_is_not_the_checkpoints_is_refused(
    scheme: Scheme, wrong: str, source: Path, tmp_path: Path
) -> None:
    quantize_checkpoint(source, tmp_path / "model", scheme)
    with pytest.raises(ValueError, match=f"model_format is {wrong}, but the checkpoint's weights are {scheme.method}"):
        logits_of(tmp_path / "model", model_format=wrong)
    logits_of(tmp_path / "model", model_format=scheme.method)


def test_awq_is_no_name_for_a_checkpoint_of_numbers(source: Path) -> None:
    with pytest.raises(ValueError, match="model_format is awq, but the checkpoint's weights are hf"):
        logits_of(source, model_format="awq")
