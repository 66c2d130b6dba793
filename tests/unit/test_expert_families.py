"""Configs of models with experts or latent attention that are invalid, or ask for what the engine lacks."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.turbomind.engine_dir import resolve
from tests.support.expert_models import MODELS
from tests.support.tiny_models import make_tiny

SENSELESS: dict[str, tuple[str, dict[str, Any], str]] = {
    "experts beyond belief": ("Qwen2-MoE", {"num_experts": 10**8}, "moe.num_experts must be at most 4096"),
    "layers beyond belief": ("Qwen3-MoE", {"num_hidden_layers": 10**8}, "num_hidden_layers must be at most 4096"),
    "more chosen than there are": ("Qwen3-MoE", {"num_experts_per_tok": 10}, "moe.experts_per_token must be at most"),
    "none chosen": ("Qwen3-MoE", {"num_experts_per_tok": 0}, "moe.experts_per_token must be a whole number >= 1"),
    "an expert more than stored": (
        "Qwen2-MoE",
        {"num_experts": 10},
        r"tensor model\.layers\.1\.mlp\.experts\.9\.up_proj\.weight is missing",
    ),
    "negative shared expert": (
        "DeepSeek-V2",
        {"n_shared_experts": -1},
        "moe.shared_intermediate_size must be a whole number >= 0",
    ),
    "groups that do not divide": ("DeepSeek-V2", {"n_group": 3}, "moe.router.groups must divide the 8 experts"),
    "too few in the chosen groups": (
        "DeepSeek-V2",
        {"topk_group": 1},
        "moe.experts_per_token must be at most the experts to choose from, got 3",
    ),
    "scale not a number": (
        "DeepSeek-V2",
        {"routed_scaling_factor": float("nan")},
        "moe.router.scale must be a finite number > 0",
    ),
    "no latent": ("MiniCPM3", {"kv_lora_rank": 0}, "attention.mla.kv_rank must be a whole number >= 1"),
    "another latent than stored": (
        "MiniCPM3",
        {"kv_lora_rank": 16},
        r"kv_a_layernorm\.weight has shape \[24\], expected \[16\]",
    ),
}


def changed(directory: Path, name: str, changes: dict[str, Any]) -> Path:
    architecture, overrides = MODELS[name]
    make_tiny(directory, architecture, **overrides)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | changes))
    return directory


@pytest.mark.parametrize("case", SENSELESS)
def test_a_config_that_makes_no_sense_is_refused_with_the_reason(case: str, tmp_path: Path) -> None:
    name, changes, reason = SENSELESS[case]
    with pytest.raises(CheckpointError, match=reason):
        resolve(changed(tmp_path / "model", name, changes))


UNSUPPORTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "another way to choose": ("DeepSeek-V2", {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not supported"),
    "a mixer of three": ("Phi-3.5-MoE", {"num_experts_per_tok": 3}, "SparseMixer of 3 experts is not supported"),
    "another limit": ("GPT-OSS", {"swiglu_limit": 5.0}, "swiglu_alpha 1.702 with swiglu_limit 5.0 is not supported"),
    "biased latents": ("MiniCPM3", {"attention_bias": True}, "attention_bias with latent attention is not supported"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_the_engine_cannot_do_is_named(case: str, tmp_path: Path) -> None:
    name, changes, reason = UNSUPPORTED[case]
    with pytest.raises(UnsupportedModelError, match=reason):
        resolve(changed(tmp_path / "model", name, changes), backend="turbomind")
