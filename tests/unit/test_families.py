"""Spec and manifest describe the model: a decoder built from them alone agrees with ``transformers``."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lmdeploy.turbomind.engine_dir import UnsupportedModelError, resolve
from lmdeploy.turbomind.families import FAMILIES
from tests.support.reference_decoder import logits
from tests.support.tiny_models import make_tiny, make_tiny_llama

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "llama with attention bias": ("LlamaForCausalLM", {"attention_bias": True}),
    "llama untied": ("LlamaForCausalLM", {"tie_word_embeddings": False}),
    "llama without grouping": ("LlamaForCausalLM", {"num_key_value_heads": 4}),
    "llama with its own head_dim": ("LlamaForCausalLM", {"head_dim": 16}),
    "llama linear rope": (
        "LlamaForCausalLM",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    ),
    "llama llama3 rope": ("LlamaForCausalLM", {"rope_parameters": LLAMA3_ROPE}),
    "llama yarn rope": (
        "LlamaForCausalLM",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 10000.0,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "mistral": ("MistralForCausalLM", {"sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {}),
}
IDS = list(range(100, 4900, 70))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_from_spec_and_manifest_equal_transformers(variant: str, tmp_path: Path) -> None:
    architecture, overrides = VARIANTS[variant]
    checkpoint = make_tiny(tmp_path / "model", architecture, **overrides)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        expected = model(torch.tensor([IDS])).logits[0]
    engine = resolve(checkpoint)
    # float32 rounding over sums of at most 64 terms, logits of magnitude 10
    torch.testing.assert_close(logits(engine, IDS), expected, rtol=1e-4, atol=1e-4)
    reference = model.model.rotary_emb
    assert torch.equal(torch.tensor(engine.spec.ropes[0].inv_freq), reference.inv_freq)
    assert engine.spec.ropes[0].attention_scaling == reference.attention_scaling


def test_old_config_files_give_the_same_rope(tmp_path: Path) -> None:
    new = make_tiny_llama(tmp_path / "new", rope_parameters=LLAMA3_ROPE)
    old = make_tiny_llama(tmp_path / "old", rope_parameters=LLAMA3_ROPE)
    config = json.loads((old / "config.json").read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    (old / "config.json").write_text(json.dumps(config))
    assert resolve(old).spec.ropes[0] == resolve(new).spec.ropes[0]
    assert len(set(resolve(new).spec.ropes[0].inv_freq)) == 4


def test_a_sliding_window_bounds_the_context(tmp_path: Path) -> None:
    checkpoint = make_tiny(tmp_path / "model", "MistralForCausalLM", sliding_window=100)
    assert resolve(checkpoint).spec.max_position_embeddings == 100


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": (
        {"architectures": ["GPT2LMHeadModel"]},
        r"GPT2LMHeadModel is not supported; supported: (\w+, )*LlamaForCausalLM, ",
    ),
    "no architecture": ({"architectures": None}, "architecture none is not supported; supported: "),
    "dynamic rope": (
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
        "rope type 'dynamic' is not supported; supported: default, linear",
    ),
    "quantized": ({"quantization_config": {"quant_method": "fp8"}}, "quantized weights of method 'fp8'"),
    "mlp bias": ({"mlp_bias": True}, "mlp_bias is not supported"),
    "activation": ({"hidden_act": "relu"}, "hidden_act 'relu' is not supported"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_the_engine_cannot_do_is_named(case: str, tiny_llama: Path, copy_of: Any) -> None:
    changes, reason = UNSUPPORTED[case]
    checkpoint = copy_of(tiny_llama)
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UnsupportedModelError, match=reason):
        resolve(checkpoint)


def test_the_supported_architectures_exist_in_transformers() -> None:
    import transformers

    assert all(hasattr(transformers, name) for name in FAMILIES)
