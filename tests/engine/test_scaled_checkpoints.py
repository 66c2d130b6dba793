"""Models stored as int8 and float8 with scales (W8A8) against `transformers` run on the numbers they stand for."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.tokenizer import Tokenizer
from tests.engine.test_quantized_checkpoints import (
    EXPERTS,
    LATENT,
    PROMPT,
    SIZES,
    WEIGHTS,
    distance,
    logits_of,
    reference_of,
    source,
)
from tests.support.scaled_checkpoints import FLOAT8, Form, quantize_checkpoint
from tests.support.tiny_models import make_tiny

__all__ = ["source"]  # a fixture

FORMS = {
    "fp8 in blocks": Form("fp8", FLOAT8, "block", "weight_scale_inv"),
    "fp8 in small blocks": Form("fp8", FLOAT8, "block", "weight_scale_inv", block=(48, 64)),
    "fp8, one scale": Form("fp8", FLOAT8, "tensor", scale_shape="scalar", static_activations=True),
    "fbgemm_fp8": Form("fbgemm_fp8", FLOAT8, "channel"),
    "compressed int8": Form("compressed-tensors", torch.int8, "channel", scales=torch.bfloat16),
    "compressed int8, one scale": Form("compressed-tensors", torch.int8, "tensor", static_activations=True),
    "compressed float8": Form("compressed-tensors", FLOAT8, "channel", scales=torch.bfloat16),
    "compressed float8, one scale": Form("compressed-tensors", FLOAT8, "tensor", static_activations=True),
    "compressed float8 in blocks": Form("compressed-tensors", FLOAT8, "block", scales=torch.bfloat16),
    "MXFP8 of ModelOpt": Form("modelopt", FLOAT8, "group", scales=torch.uint8),
    "compressed MXFP8": Form("compressed-tensors", FLOAT8, "group", scales=torch.uint8),
    "smooth_quant int8": Form("smooth_quant", torch.int8, "channel", "scale"),
    "smooth_quant float8": Form("smooth_quant", FLOAT8, "channel", "scale"),
    "with its lm_head": Form("compressed-tensors", FLOAT8, "channel", unquantized=()),
    "without k and gate": Form(
        "compressed-tensors", torch.int8, "channel", unquantized=("lm_head", "k_proj", "gate_proj")
    ),
}


# About three times what rounded activations cost in this model: int8 in groups for int8 weights, bfloat16 (where the
# instruction set multiplies it) for float8. A wrong scale or order is off by more than 0.3.
LIMITS = {torch.int8: 0.02, FLOAT8: 0.006}


@pytest.mark.parametrize("name", FORMS)
def test_the_logits_are_those_of_the_stored_numbers(name: str, source: Path, tmp_path: Path) -> None:
    values = quantize_checkpoint(source, tmp_path / "model", FORMS[name])
    assert len(values) >= 10
    error = distance(logits_of(tmp_path / "model"), reference_of(source, values))
    assert error < LIMITS[FORMS[name].dtype]


def test_the_logits_are_those_of_weights_that_transformers_widens(source: Path, tmp_path: Path) -> None:
    form = FORMS["fp8 in small blocks"]
    quantized = quantize_checkpoint(source, tmp_path / "model", form)
    # `transformers` runs such a checkpoint with the package accelerate alone; its arithmetic needs nothing.
    stored = load_file(tmp_path / "model" / WEIGHTS)
    values = {
        name: _dequantize_fp8_weight(
            stored[name], stored[name.replace(".weight", ".weight_scale_inv")], list(form.block), torch.float32
        )
        for name in quantized
    }
    assert distance(logits_of(tmp_path / "model"), reference_of(source, values)) < LIMITS[FLOAT8]


@pytest.mark.parametrize("name", ["fp8 in blocks", "smooth_quant int8"])
def test_a_response_takes_the_most_likely_tokens_of_the_stored_numbers(name: str, source: Path, tmp_path: Path) -> None:
    values = quantize_checkpoint(source, tmp_path / "model", FORMS[name])
    config = TurbomindEngineConfig(cache_max_entry_count=16, model_format=FORMS[name].method)
    with pipeline(str(tmp_path / "model"), backend_config=config) as model:
        response = model(PROMPT, GenerationConfig(max_new_tokens=12, ignore_eos=True, top_k=1), do_preprocess=False)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    model.load_state_dict(values, strict=False)
    prompt = Tokenizer(str(source)).encode(PROMPT)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response.token_ids])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(response.token_ids)[:, None])[:, 0]
    spread = logits.std(-1)
    assert ((logits.amax(-1) - chosen) / spread < 4 * LIMITS[FORMS[name].dtype]).all()


def test_fused_layers_are_read_from_their_codes(tmp_path: Path) -> None:
    tiny = make_tiny(tmp_path / "source", "Phi3ForCausalLM", initializer_range=0.05, pad_token_id=0, **SIZES)
    values = quantize_checkpoint(tiny, tmp_path / "model", FORMS["fp8 in blocks"])
    assert any("qkv_proj" in name for name in values)
    assert distance(logits_of(tmp_path / "model"), reference_of(tiny, values)) < LIMITS[FLOAT8]


DEEPSEEK_V3 = (
    EXPERTS
    | LATENT
    | {
        "num_hidden_layers": 2,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "n_group": 4,
        "topk_group": 2,
    }
)
MOE_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen2-MoE": (
        "Qwen2MoeForCausalLM",
        EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 64},
    ),
    "DeepSeek-V3": ("DeepseekV3ForCausalLM", DEEPSEEK_V3),
    "GLM-4.5": ("Glm4MoeForCausalLM", DEEPSEEK_V3 | {"num_key_value_heads": 2, "head_dim": 32}),
    "MiniMax-M2": ("MiniMaxM2ForCausalLM", EXPERTS | {"num_local_experts": 4, "head_dim": 32}),
}


@pytest.mark.alike
@pytest.mark.parametrize("name", ["fp8 in small blocks", "compressed float8", "compressed int8", "MXFP8 of ModelOpt"])
@pytest.mark.parametrize("model", MOE_MODELS)
def test_experts_are_multiplied_as_codes(model: str, name: str, tmp_path: Path) -> None:
    architecture, sizes = MOE_MODELS[model]
    tiny = make_tiny(tmp_path / "source", architecture, **sizes)
    values = quantize_checkpoint(tiny, tmp_path / "model", FORMS[name])
    assert any("experts.3.down_proj" in name or "experts.3.w2" in name for name in values)
    # `transformers` keeps experts stacked, so it reads the numbers from a checkpoint.
    unquantized = Path(shutil.copytree(tiny, tmp_path / "plain"))
    save_file(load_file(tiny / WEIGHTS) | values, unquantized / WEIGHTS, metadata={"format": "pt"})
    assert distance(logits_of(tmp_path / "model"), reference_of(unquantized, {})) < LIMITS[FORMS[name].dtype]


def test_codes_stay_as_they_are_alongside_quantized_weights_and_a_quantized_cache(source: Path, tmp_path: Path) -> None:
    values = quantize_checkpoint(source, tmp_path / "model", FORMS["fp8 in blocks"])
    exact = reference_of(source, values)
    # The output layer's 8 bits and the cache's; were the codes rounded again to 4 bits, this would be 0.1.
    assert distance(logits_of(tmp_path / "model", weight_bits=4, quant_policy=8), exact) < 0.02


def test_a_model_format_that_is_not_the_checkpoints_is_refused(source: Path, tmp_path: Path) -> None:
    quantize_checkpoint(source, tmp_path / "model", FORMS["compressed int8"])
    with pytest.raises(ValueError, match="model_format is fp8, but the checkpoint's weights are compressed-tensors"):
        logits_of(tmp_path / "model", model_format="fp8")
