"""Models in GGUF files against `transformers` run on the numbers that the files hold.

Numbers are summed in float32 on both sides, in different orders: logits agree to 1e-4 of the largest of their row.
Where matrices stay codes, activations are rounded to 8 bits: that costs these models about one percent.
"""

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from tests.engine.test_model_families import FALCON, LINEAR_ROPE, LONG_ROPE, SMALL_HEADS, UNTIED
from tests.support.emulated_cuda import emulated_cuda
from tests.support.expert_models import EXPERTS, QWEN_EXPERTS
from tests.support.gguf_files import Tensors, Type, TypeOf, matrices_in, write_gguf
from tests.support.hybrid_models import EXPERTS as HYBRID_EXPERTS
from tests.support.hybrid_models import GATED_DELTA
from tests.support.tiny_models import LLAMA3_ROPE, make_small
from tests.support.token_engine import TokenEngine, relative_error

PROMPT = [(37 * i * i + 11 * i) % 900 + 100 for i in range(45)]
TOLERANCE = 1e-4
LIMIT = 0.02
PHI3 = {"pad_token_id": 0, "sliding_window": None}
EXPERT_COUNTS = {"expert_count": 6, "expert_used_count": 2}
QWEN_COUNTS = {"expert_count": 9, "expert_used_count": 3, "expert_feed_forward_length": 24}
GATED_DELTA_SIZES = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 96,
    "attention.recurrent_layers": [True, False, True, True],
}
HYBRID_COUNTS = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 24}
# GGUF's architecture, that of `transformers`, fields of its config, further metadata; others are in
# test_gguf_listings.py, with the metadata of published files.
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "Llama, untied, its own heads": ("llama", "LlamaForCausalLM", UNTIED | {"head_dim": 24}, {}),
    "Llama with biases": ("llama", "LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}, {}),
    "Llama with linear rope": ("llama", "LlamaForCausalLM", {"rope_parameters": LINEAR_ROPE}, {}),
    "InternLM2": ("internlm2", "LlamaForCausalLM", UNTIED, {}),
    "Qwen2-MoE": (
        "qwen2moe",
        "Qwen2MoeForCausalLM",
        QWEN_EXPERTS | {"shared_expert_intermediate_size": 40},
        QWEN_COUNTS | {"expert_shared_feed_forward_length": 40},
    ),
    "Qwen3-Next": (
        "qwen3next",
        "Qwen3NextForCausalLM",
        GATED_DELTA | HYBRID_EXPERTS | {"norm_topk_prob": True},
        GATED_DELTA_SIZES | HYBRID_COUNTS,
    ),
    "Phi-3.5": ("phi3", "Phi3ForCausalLM", PHI3 | {"sliding_window": 30, "rope_parameters": LONG_ROPE}, {}),
    "StarCoder2": ("starcoder2", "Starcoder2ForCausalLM", {"sliding_window": None, "use_bias": True}, {}),
    "OLMo 2": ("olmo2", "Olmo2ForCausalLM", {"pad_token_id": 0} | UNTIED, {}),
    "EXAONE 4 1.2B": (
        "exaone4",
        "Exaone4ForCausalLM",
        {"sliding_window": None, "layer_types": ["full_attention"] * 2, "rope_parameters": LLAMA3_ROPE},
        {},
    ),
    "Seed-OSS": ("seed_oss", "SeedOssForCausalLM", SMALL_HEADS | {"pad_token_id": 0}, {}),
    "ERNIE 4.5": ("ernie4_5", "Ernie4_5ForCausalLM", SMALL_HEADS, {}),
    "Command R+": (
        "command-r",
        "CohereForCausalLM",
        {"logit_scale": 0.5, "pad_token_id": 0, "use_qk_norm": True},
        {"logit_scale": 0.5},
    ),
    "Phi-2": ("phi2", "PhiForCausalLM", UNTIED, {}),
    "StableLM": ("stablelm", "StableLmForCausalLM", UNTIED | {"use_qkv_bias": True}, {}),
    "StableLM in parallel": (
        "stablelm",
        "StableLmForCausalLM",
        {"use_parallel_residual": True},
        {},
    ),
    "Falcon 7B": ("falcon", "FalconForCausalLM", FALCON | {"multi_query": True, "parallel_attn": True}, {}),
    "Falcon 40B": ("falcon", "FalconForCausalLM", FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}, {}),
    "Falcon 11B": (
        "falcon",
        "FalconForCausalLM",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
        {},
    ),
}


def logits_of_transformers(directory: Path, ids: list[int], values: Tensors | None = None) -> torch.Tensor:
    """Return the logits of each token, with other weights where they are given."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    if values is not None:
        model.load_state_dict(values, strict=False)
        model.tie_weights()
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


@pytest.mark.alike(max_cases=9)
@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_the_checkpoint_a_file_was_written_from(name: str, tmp_path: Path) -> None:
    architecture, published, overrides, extra = CASES[name]
    source = make_small(tmp_path / "source", published, **overrides)
    write_gguf(source, tmp_path / "model.gguf", architecture, extra=extra)
    with TokenEngine(tmp_path / "model.gguf") as engine:
        response, logits = engine.generate(PROMPT, 4, "all")
    assert relative_error(logits, logits_of_transformers(source, PROMPT + response[:-1])) < TOLERANCE


def mixed(name: str, shape: tuple[int, ...]) -> Type:
    """As files of mixed types have it: parts of what is one matrix here differ."""
    if len(shape) == 1 or shape[-1] % 32:
        return Type.F32
    if "attn_v" in name:
        return Type.Q8_0
    return Type.Q5_1 if "ffn_gate" in name or "attn_output" in name else Type.Q4_0


QUANTIZED: dict[str, TypeOf] = {
    "Q4_0": matrices_in(Type.Q4_0),
    "Q4_1": matrices_in(Type.Q4_1),
    "Q5_0": matrices_in(Type.Q5_0),
    "Q5_1": matrices_in(Type.Q5_1),
    "Q8_0": matrices_in(Type.Q8_0),
    "mixed": mixed,
}


# CUDA has codes of 5 bits as 8-bit ones, with minima as 16-bit numbers.
@pytest.mark.parametrize(("name", "on_cuda"), [*((name, False) for name in QUANTIZED), ("Q5_0", True), ("Q5_1", True)])
def test_logits_are_those_of_the_numbers_that_codes_stand_for(name: str, on_cuda: bool, tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 384, "initializer_range": 0.05}
    source = make_small(tmp_path / "source", "LlamaForCausalLM", attention_bias=True, **sizes)
    values = write_gguf(source, tmp_path / "model.gguf", "llama", QUANTIZED[name])
    expected = logits_of_transformers(source, PROMPT, values)
    with emulated_cuda() if on_cuda else nullcontext(), TokenEngine(tmp_path / "model.gguf") as engine:
        _, logits = engine.generate(PROMPT, 1, "all")
    assert float((logits - expected).square().mean().sqrt() / expected.square().mean().sqrt()) < LIMIT


EXPERTS_AS_CODES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "Mixtral": ("llama", "MixtralForCausalLM", EXPERTS | {"sliding_window": None}, EXPERT_COUNTS),
    "Qwen2-MoE": (
        "qwen2moe",
        "Qwen2MoeForCausalLM",
        QWEN_EXPERTS | {"moe_intermediate_size": 96, "shared_expert_intermediate_size": 160},
        QWEN_COUNTS | {"expert_feed_forward_length": 96, "expert_shared_feed_forward_length": 160},
    ),
}


@pytest.mark.parametrize("name", EXPERTS_AS_CODES)
def test_experts_are_multiplied_as_codes(name: str, tmp_path: Path) -> None:
    architecture, published, overrides, extra = EXPERTS_AS_CODES[name]
    sizes = {"hidden_size": 64, "intermediate_size": 96, "initializer_range": 0.05}
    source = make_small(tmp_path / "source", published, **(sizes | overrides))
    values = write_gguf(source, tmp_path / "model.gguf", architecture, mixed, extra=extra)
    # `transformers` keeps experts stacked, so it reads the numbers from a checkpoint.
    unquantized = Path(shutil.copytree(source, tmp_path / "plain"))
    save_file(values, unquantized / "model.safetensors", metadata={"format": "pt"})
    with TokenEngine(tmp_path / "model.gguf") as engine:
        _, logits = engine.generate(PROMPT, 1, "all")
    expected = logits_of_transformers(unquantized, PROMPT)
    assert float((logits - expected).square().mean().sqrt() / expected.square().mean().sqrt()) < LIMIT


def test_a_hybrid_model_is_multiplied_as_codes(tmp_path: Path) -> None:
    # Heads of 32 values: the inputs of the last matrix are moved as codes.
    sizes = {"hidden_size": 64, "intermediate_size": 96, "initializer_range": 0.05, "linear_value_head_dim": 32}
    source = make_small(tmp_path / "source", "Qwen3_5ForCausalLM", **(GATED_DELTA | sizes))
    values = write_gguf(
        source, tmp_path / "model.gguf", "qwen35", mixed, extra=GATED_DELTA_SIZES | {"ssm.inner_size": 128}
    )
    expected = logits_of_transformers(source, PROMPT, values)
    found = []
    for ranks in (1, 2):
        with TokenEngine(tmp_path / "model.gguf", tp=ranks) as engine:
            found.append(engine.generate(PROMPT, 1, "all")[1])
    for logits in found:  # states add up what rounding of activations costs
        assert float((logits - expected).square().mean().sqrt() / expected.square().mean().sqrt()) < 3 * LIMIT


def test_a_split_file_on_two_ranks_answers_as_the_whole_one(tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 384, "initializer_range": 0.05}
    source = make_small(tmp_path / "source", "LlamaForCausalLM", **sizes)
    write_gguf(source, tmp_path / "model.gguf", "llama", mixed)
    write_gguf(source, tmp_path / "parts.gguf", "llama", mixed, parts=3)
    found = []
    for path, ranks in ((tmp_path / "model.gguf", 1), (tmp_path / "parts-00002-of-00003.gguf", 2)):
        with TokenEngine(path, tp=ranks) as engine:
            found.append(engine.generate(PROMPT, 1, "all")[1])
    # Each rank rounds activations in the same groups: only sums are in another order.
    assert relative_error(found[1], found[0]) < LIMIT


def test_a_pipeline_chats_with_a_file(tmp_path: Path) -> None:
    source = make_small(tmp_path / "source", "LlamaForCausalLM")
    write_gguf(source, tmp_path / "some-model.gguf", "llama")
    config = TurbomindEngineConfig(session_len=128, cache_max_entry_count=8, dtype="float32", model_format="gguf")
    requested = GenerationConfig(max_new_tokens=6, do_sample=False)
    responses = []
    for path, backend in (
        (source, TurbomindEngineConfig(**vars(config) | {"model_format": None})),
        (tmp_path / "some-model.gguf", config),
    ):
        with pipeline(str(path), backend_config=backend) as model:
            responses.append(model("What are the 12 months?", requested).token_ids)
    assert responses[0] == responses[1]
