"""Families: what is refused and why, what is only warned of, and how a new one is added."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Phi3Config, Phi3ForCausalLM

import lmdeploy.turbomind.families as package
from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.checkpoint import describe
from lmdeploy.turbomind.engine_dir import resolve
from lmdeploy.turbomind.families.common import windows_of
from lmdeploy.turbomind.manifest import Manifest
from tests.support.expert_models import MODELS
from tests.support.tiny_models import LLAMA3_ROPE, make_tiny, make_tiny_llama
from tests.support.tiny_vision_models import TEXT, save_random
from tools.bench.random_model import write_tokenizer


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


def test_a_window_of_no_token_is_refused_with_its_layer() -> None:
    kinds = ["full_attention", "sliding_attention"]
    config = SimpleNamespace(sliding_window=0, layer_types=kinds, num_hidden_layers=2)
    with pytest.raises(ValueError, match="layer 1: sliding_window must be >= 1, got 0"):
        windows_of(config)
    assert windows_of(SimpleNamespace(sliding_window=4, layer_types=kinds, num_hidden_layers=2)) == (0, 4)
    assert windows_of(SimpleNamespace(sliding_window=0, num_hidden_layers=2)) == ()


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": (
        {"architectures": ["XGLMForCausalLM"]},
        r"XGLMForCausalLM is not supported: no family describes it; the nearest supported one is \w+",
    ),
    "no architecture": ({"architectures": None}, "config.json names no architecture"),
    "rope": (
        {"rope_parameters": {"rope_type": "axial", "factor": 2.0, "rope_theta": 10000.0}},
        "rope type 'axial' is not supported; supported: default, linear, dynamic",
    ),
    "quantized": ({"quantization_config": {"quant_method": "aqlm"}}, "weights of method 'aqlm'"),
    "its own code": (
        {"architectures": ["NovelForCausalLM"], "auto_map": {"AutoModel": "modeling_novel.Novel"}},
        "NovelForCausalLM is not supported.*the checkpoint's own code is never run",
    ),
    "nearest": ({"architectures": ["Qwen3NewForCausalLM"]}, "nearest supported one is Qwen3"),
    "activation": ({"hidden_act": "mish"}, "activation 'mish' is not supported; supported: silu"),
}


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_what_the_engine_cannot_do_is_named(case: str, tiny_llama: Path, copy_of: Any) -> None:
    changes, reason = UNSUPPORTED[case]
    checkpoint = copy_of(tiny_llama)
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UnsupportedModelError, match=reason):
        resolve(checkpoint, backend="turbomind")


def test_the_documents_table_names_every_architecture() -> None:
    rows = (Path(__file__).parents[2] / "docs" / "reference" / "supported-models.md").read_text().splitlines()
    named = {name for row in rows if row.startswith("|") for name in re.findall(r"`(\w+)`", row.split("|")[2])}
    assert named == set(package.families())


FAMILY_FILE = """
from lmdeploy.turbomind.families.common import Family, decoder_spec, llama_config
from lmdeploy.turbomind.families.layout import Layout

IMAGINARY = Family(
    ("ImaginaryForCausalLM",), decoder_spec, Layout(layer="model.blocks.{}.").tensors, config=llama_config
)
"""


def test_an_imaginary_family_needs_only_a_file(tmp_path: Path, tiny_llama: Path, copy_of: Any) -> None:
    (tmp_path / "imaginary.py").write_text(FAMILY_FILE)
    checkpoint = copy_of(tiny_llama)
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(
        json.dumps(config | {"architectures": ["ImaginaryForCausalLM"], "model_type": "imaginary"})
    )
    weights = checkpoint / "model.safetensors"
    save_file({n.replace("layers", "blocks"): t for n, t in load_file(weights).items()}, weights)
    package.__path__.append(str(tmp_path))
    package.families.cache_clear()
    try:
        engine = resolve(checkpoint)
        assert engine.spec.architecture == "ImaginaryForCausalLM"
        assert engine.spec.ropes == resolve(tiny_llama).spec.ropes
        manifest = Manifest.from_json((engine.path / "manifest.json").read_text(), tmp_path)
        names = {name for _, name, _ in manifest.loads()}
        assert "model.blocks.1.mlp.up_proj.weight" in names
    finally:
        package.__path__.remove(str(tmp_path))
        package.families.cache_clear()
        sys.modules.pop("lmdeploy.turbomind.families.imaginary", None)
    with pytest.raises(UnsupportedModelError, match="ImaginaryForCausalLM"):
        package.family_of(["ImaginaryForCausalLM"])


def test_extra_tensors_are_named_in_one_warning(
    tiny_llama: Path, copy_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = copy_of(tiny_llama)
    tensors = load_file(checkpoint / "model.safetensors")
    extra = {f"model.extra.{index}.weight": torch.zeros(2) for index in range(3)}
    buffers = ("self_attn.rotary_emb.inv_freq", "attn.attention.bias", "attention.masked_bias", "attn.causal_mask")
    harmless = {f"model.layers.0.{name}": torch.zeros(4) for name in buffers}
    save_file(tensors | extra | harmless, checkpoint / "model.safetensors")
    with caplog.at_level("WARNING"):
        resolve(checkpoint)
    (warning,) = [record.getMessage() for record in caplog.records if "not used" in record.getMessage()]
    assert "3 tensors are not part of the model" in warning
    assert all(name in warning for name in extra)
    assert "layers.0" not in warning


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


UNSUPPORTED_EXPERTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "another way to choose": ("DeepSeek-V2", {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not supported"),
    "a mixer of three": ("Phi-3.5-MoE", {"num_experts_per_tok": 3}, "SparseMixer of 3 experts is not supported"),
    "another limit": ("GPT-OSS", {"swiglu_limit": 5.0}, "swiglu_alpha 1.702 with swiglu_limit 5.0 is not supported"),
    "biased latents": ("MiniCPM3", {"attention_bias": True}, "attention_bias with latent attention is not supported"),
}


@pytest.mark.parametrize("case", UNSUPPORTED_EXPERTS)
def test_what_the_engine_cannot_do_with_experts_is_named(case: str, tmp_path: Path) -> None:
    name, changes, reason = UNSUPPORTED_EXPERTS[case]
    with pytest.raises(UnsupportedModelError, match=reason):
        resolve(changed(tmp_path / "model", name, changes), backend="turbomind")


FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0]}


def test_longrope_by_its_first_name_is_longrope(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64, **FACTORS}
    config = Phi3Config(**TEXT, original_max_position_embeddings=64, rope_parameters=rope)
    directory = save_random(Phi3ForCausalLM, config, tmp_path / "model", 0)
    today = describe(directory, "model").spec
    assert today.ropes[0].stretch is not None
    written = json.loads((directory / "config.json").read_text())
    del written["rope_parameters"]
    written |= {"rope_theta": 10000.0, "original_max_position_embeddings": 64}
    written |= {"rope_scaling": {"type": "su", **FACTORS}}
    (directory / "config.json").write_text(json.dumps(written))
    assert describe(directory, "model").spec == today
    write_tokenizer(directory)
    del written["original_max_position_embeddings"]  # the class has one
    (directory / "config.json").write_text(json.dumps(written))
    assert describe(directory, "model").spec.ropes[0].stretch is not None
    assert Tokenizer(str(directory)).encode("a")  # it is no fault of the tokenizer that `transformers` has no `su`
