"""The table of LMDeploy's manual for its PyTorch engine: text models, in each column that it says yes to.

Vision-language models are in `models/test_seeing.py` and `models/test_quantized_vision.py`; the columns of those that
TurboMind runs, in `tests/engine`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmdeploy.turbomind.engine_dir import resolve
from tests.pytorch.test_transformers_models import DBRX, HIDDEN, LATENT, VOCAB, make, off, tokens_of
from tests.support import published
from tests.support.quantized_checkpoints import Scheme, quantize_checkpoint, with_values
from tests.support.scaled_checkpoints import Form
from tests.support.tiny_models import make_tiny
from tests.support.worker_steps import Part, StepDriver

TOKENS = tokens_of(40)
FOUR_HEADS = {"num_key_value_heads": 4, "tie_word_embeddings": False}
WIDE_LATENT = LATENT | {"kv_lora_rank": 32}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [1.0] * 8}
SHARED = {"shared_expert_intermediate_size": 64, "mlp_only_layers": [0], "decoder_sparse_step": 1}
ALL_OF_DBRX = DBRX | {"ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 4}}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
UNBIASED = {"qkv_bias": False, "norm_topk_prob": False}
FLOAT, KV8, KV4, W8A8, W4A16 = "bf16", "kv int8", "kv int4", "w8a8", "w4a16"
ALL = (FLOAT, KV8, KV4, W8A8, W4A16)


@dataclass(frozen=True)
class Row:
    """A model: the class of `transformers` that a tiny one is made by, and what is asked of it."""

    architecture: str
    more: dict[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = ALL


ROWS = {
    "Llama to Llama 3.2, YI": Row("LlamaForCausalLM"),
    "Mistral": Row("MistralForCausalLM", {"sliding_window": 12}),
    "Mixtral": Row("MixtralForCausalLM"),
    "QWen1.5, QWen2, Qwen2.5": Row("Qwen2ForCausalLM"),
    "QWen1.5-MoE": Row("Qwen2MoeForCausalLM", SHARED),
    "DeepSeek-V2, V2.5": Row("DeepseekV2ForCausalLM", WIDE_LATENT),
    "MiniCPM3": Row("MiniCPM3ForCausalLM", WIDE_LATENT),
    "Gemma": Row("GemmaForCausalLM", {"head_dim": 16}),
    "Gemma2": Row("Gemma2ForCausalLM", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16}),
    "Dbrx": Row("DbrxForCausalLM", ALL_OF_DBRX, columns=(FLOAT, KV8, KV4)),  # no column says more
    "StarCoder2": Row("Starcoder2ForCausalLM", {"sliding_window": 8}),
    "Phi-3-mini, Phi-3.5-mini": Row("Phi3ForCausalLM", {"rope_parameters": LONG}),
    "Phi-3.5-MoE": Row("PhimoeForCausalLM", {"num_local_experts": 2, "num_experts_per_tok": 2}),
}
FALCON = {"num_key_value_heads": None, "ffn_hidden_size": 96, "multi_query": True, "parallel_attn": True}
FALCON_RW = FALCON | {"multi_query": False, "alibi": True, "parallel_attn": False, "bias": True}
HALF_ROPE = {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5}
GLM = {"head_dim": 16, "tie_word_embeddings": False, "rope_parameters": HALF_ROPE, "pad_token_id": 0}
BY_TURBOMIND: dict[str, tuple[str, dict[str, Any], Callable[[Path], None]]] = {
    "InternLM": ("LlamaForCausalLM", FOUR_HEADS | {"attention_bias": True}, published.internlm),
    "InternLM2, InternLM2.5": ("LlamaForCausalLM", {"tie_word_embeddings": False}, published.internlm2),
    "Baichuan2 7B": ("LlamaForCausalLM", FOUR_HEADS, published.baichuan),
    "Baichuan2 13B": ("LlamaForCausalLM", FOUR_HEADS, published.baichuan_alibi),
    "ChatGLM2, GLM4, CodeGeeX4": ("GlmForCausalLM", GLM, published.chatglm),
    "Falcon": ("FalconForCausalLM", FALCON, published.as_is),
    "Falcon RW": ("FalconForCausalLM", FALCON_RW, published.as_is),
    "QWen": ("Qwen2ForCausalLM", FOUR_HEADS, published.qwen),
    "DeepSeek-MoE": ("Qwen2MoeForCausalLM", FOUR_HEADS | EXPERTS | SHARED | UNBIASED, published.deepseek_moe),
    "StableLM": ("StableLmForCausalLM", {}, published.as_is),
    "StableLM 12B": ("StableLmForCausalLM", {"qk_layernorm": True}, published.as_is),
}
# The most that a column may cost, relative to the largest logit of a tiny random model.
LOSSES = {FLOAT: 0.08, KV8: 0.02, KV4: 0.25, W8A8: 0.06, W4A16: 0.06}
_NUMBERS = ("embed", "wte", "word_embeddings", "lm_head", "output", "norm", "router", "gate.weight", "ln_", "kv_b_proj")


def is_linear(name: str) -> bool:
    """Return whether the tools of LMDeploy quantize a tensor: no embedding, head, norm or router."""
    return name.endswith(".weight") and not any(part in name for part in _NUMBERS)


def fill_biases(directory: Path) -> None:
    """Give biases numbers, as trained models have them: tools write zeros for layers that have none."""
    tensors, random = load_file(directory / "model.safetensors"), torch.Generator().manual_seed(1)
    for name in sorted(tensors):
        if name.endswith(".bias"):
            tensors[name].normal_(std=0.05, generator=random)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def logits_of(directory: Path, **options: Any) -> Any:
    driver = StepDriver(directory, VOCAB, HIDDEN, **options)
    driver.step(Part(0, 0, TOKENS[:30], prompt=40))
    [logits] = driver.step(Part(0, 30, TOKENS[30:], prompt=40))  # after what is in the cache
    return logits


@pytest.mark.alike(max_cases=8)
@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_table(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    unquantized = tmp_path / "plain"
    # All experts of a layer, so that no rounding chooses others.
    make(unquantized, row.architecture, **{"num_experts_per_tok": 4, "moe_k": 4} | row.more)
    fill_biases(unquantized)
    expected = logits_of(unquantized, dtype="float32")
    lost = {
        FLOAT: off(logits_of(unquantized, dtype="bfloat16"), expected),
        KV8: off(logits_of(unquantized, quant_policy=8), expected),
        KV4: off(logits_of(unquantized, quant_policy=4), expected),
    }
    for column in row.columns[3:]:
        quantized, numbers = tmp_path / column, tmp_path / f"numbers of {column}"
        form = Form("smooth_quant", torch.int8, "channel", "scale") if column == W8A8 else Scheme("awq")
        values = quantize_checkpoint(unquantized, quantized, form, is_linear)
        with_values(unquantized, numbers, values)
        lost[column] = off(logits_of(quantized), logits_of(numbers))
    assert {column: loss for column, loss in lost.items() if not loss < LOSSES[column]} == {}


@pytest.mark.parametrize("name", BY_TURBOMIND)
def test_a_row_that_turbomind_runs(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    architecture, more, publish = BY_TURBOMIND[name]
    make_tiny(tmp_path, architecture, vocab_size=1000, **more)
    publish(tmp_path)
    assert resolve(tmp_path, backend="pytorch").backend == "turbomind"
    assert "the TurboMind engine runs it" in caplog.text
