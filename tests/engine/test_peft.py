"""Adapters that PEFT itself made and saved: both engines compute what its model computes."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from lmdeploy import PytorchEngineConfig
from tests.engine.test_model_families import PROMPT
from tests.support.tiny_models import make_tiny_llama
from tests.support.tiny_vision_models import make_tiny_gemma3, make_tiny_llava, make_tiny_qwen_vl
from tests.support.token_engine import TokenEngine, relative_error

TOLERANCE = 1e-4
EMBEDDINGS = "embeddings"  # of TurboMind alone
CONFIGS: dict[str, dict[str, Any]] = {
    "attention": {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
    "every layer": {"r": 8, "lora_alpha": 8, "target_modules": "all-linear"},
    "by the root of the rank": {"r": 4, "lora_alpha": 2, "target_modules": ["o_proj", "up_proj"], "use_rslora": True},
    "their own ranks": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "down_proj"],
        "rank_pattern": {"q_proj": 6},
        "alpha_pattern": {"layers.0.mlp.down_proj": 3},
    },
    EMBEDDINGS: {"r": 5, "lora_alpha": 7, "target_modules": ["embed_tokens", "v_proj"]},
    "by an expression": {"r": 3, "lora_alpha": 6, "target_modules": r".*\.1\.(self_attn\.v_proj|mlp\.gate_proj)"},
}


def train_nothing(directory: Path, adapter: Path, name: str) -> torch.nn.Module:
    """Save an adapter with random weights, and return PEFT's model with it."""
    torch.manual_seed(len(name))
    base = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **CONFIGS[name]))
    for parameter_name, parameter in model.named_parameters():
        if "lora_B" in parameter_name or "lora_embedding_A" in parameter_name:  # zeros before training
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(adapter)
    return model.eval()


def logits_of(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


def check(
    config: Any, directory: Path, models: dict[str, torch.nn.Module], prompt: list[int] = PROMPT, **settings: Any
) -> None:
    with TokenEngine(directory, config=config, **settings) as engine:
        base = engine.generate(prompt, 1)[1]
        for name, model in models.items():
            response, logits = engine.generate(prompt, 8, adapter=name)
            assert relative_error(logits, logits_of(model, prompt + response[:-1])) < TOLERANCE
            assert relative_error(logits[: len(prompt)], base) > 0.01


def test_logits_are_those_of_pefts_model(tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "model")
    models = {name: train_nothing(directory, tmp_path / name, name) for name in CONFIGS}
    paths = {name: str(tmp_path / name) for name in CONFIGS}
    check(None, directory, models, adapters=paths)
    del models[EMBEDDINGS], paths[EMBEDDINGS]
    pytorch = PytorchEngineConfig(dtype="float32", block_size=16, num_gpu_blocks=64, session_len=256, adapters=paths)
    check(pytorch, directory, models)


SEEING = {"Qwen2-VL": make_tiny_qwen_vl, "LLaVA": make_tiny_llava, "Gemma 3": make_tiny_gemma3}


@pytest.mark.parametrize("name", SEEING)
def test_an_adapter_of_a_model_that_sees_has_the_names_of_the_model_in_memory(name: str, tmp_path: Path) -> None:
    directory = SEEING[name](tmp_path / "model")
    base = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=r".*language_model.*\.(q_proj|down_proj)")
    model = peft.get_peft_model(base, config)
    for parameter_name, parameter in model.named_parameters():
        if "lora_B" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path / "own")
    stored = load_file(tmp_path / "own" / "adapter_model.safetensors")
    assert all("model.language_model." in tensor for tensor in stored)
    prompt = [(37 * i * i + 11 * i) % 200 + 20 for i in range(12)]
    check(None, directory, {"own": model.eval()}, prompt, adapters={"own": str(tmp_path / "own")})


@pytest.mark.parametrize(
    "changes",
    [
        {"modules_to_save": ["lm_head"]},
        {"use_dora": True},
        {"bias": "lora_only"},
        {"trainable_token_indices": {"embed_tokens": [1, 2]}},
    ],
)
def test_what_an_adapter_of_pefts_may_hold_besides_is_refused_by_name(changes: dict[str, Any], tmp_path: Path) -> None:
    directory = make_tiny_llama(tmp_path / "model")
    base = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"], **changes)
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match=next(iter(changes))):
        TokenEngine(directory, adapters={"own": str(tmp_path / "adapter")})


@pytest.mark.parametrize(
    ("targets", "added", "reason"),
    [
        (["q_proj"], 4, r"lm_head.weight is a whole layer, as PEFT saves embeddings whose vocabulary was resized"),
        (["embed_tokens"], 4, r"of another base: model.embed_tokens has lora_A"),
        (["lm_head"], 0, "adds to lm_head, .* output layer are not"),
    ],
)
def test_layers_that_pefts_default_saves_whole_are_refused_by_name(
    targets: list[str], added: int, reason: str, tmp_path: Path
) -> None:
    directory = make_tiny_llama(tmp_path / "model")
    base = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    base.resize_token_embeddings(base.config.vocab_size + added, mean_resizing=False)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=targets)
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match=reason):
        TokenEngine(directory, adapters={"own": str(tmp_path / "adapter")})
