"""Published checkpoints' config.json is read as it is, or refused by name with the reason.

The sizes are small, all else is as published. Of each architecture that is served, a checkpoint of random weights with
such a config.json gives the logits of ``transformers``.
"""

import json
from pathlib import Path

import pytest
import torch

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.offline.texts import rows_of
from lmdeploy.turbomind.checkpoint import describe
from tests.support.published_configs import ENCODERS, Config, make_published, published_configs
from tests.support.token_engine import TokenEngine, relative_error

CONFIGS = published_configs()
PROMPT = [(37 * i * i + 11 * i) % 900 + 100 for i in range(45)]
TOLERANCE = 1e-4

# What is not served: a part of the reason that is said, and the names. Support deletes a line.
REFUSED: dict[str, tuple[str, ...]] = {
    "Drafts of another model": (
        "DFlash--27b-draft",
        "SpecForge--deepseek-v3-671b-eagle3",
    ),
    "is not supported: no family describes it": (
        "EleutherAI--gpt-j-6b--cut",
        "LGAI-EXAONE--EXAONE-3.5-7.8B-Instruct",
        "LiquidAI--LFM2.5-VL-1.6B",
        "Logics-MLLM--Logics-Thinking",
        "MiniMaxAI--MiniMax-M3",
        "Salesforce--codegen-2B-multi--cut",
        "Salesforce--xgen-mm-phi3-mini-instruct",
        "ai21labs--Jamba-v0.1--cut",
        "deepseek-ai--DeepSeek-OCR-2",
        "deepseek-ai--DeepSeek-V4-Flash",
        "inclusionAI--Ming-Lite-Omni",
        "internlm--internlm2-7b-reward",
        "microsoft--Phi-3-small-8k-instruct",
        "microsoft--maira-2--cut",
        "microsoft--phi-2--first-release",
        "mistralai--Voxtral-Mini-3B-2507",
        "moonshotai--Kimi-K2.5",
        "moonshotai--Kimi-K3",
        "nvidia--Llama-3_3-Nemotron-Super-49B-v1",
        "sgl-project--DeepSeek-V4-Flash-FP8",
        "stepfun-ai--Step-3.7-Flash",
        "tiiuae--falcon-40b--first-release",
        "xverse--XVERSE-7B-Chat",
    ),
    "ChatGLM-6B": ("THUDM--chatglm-6b-slim",),
    "quantized weights of method 'bitsandbytes' are not supported": (
        "allenai--Molmo-7B-D-0924--bnb-nf4",
        "canopylabs--orpheus-3b--quantized",
        "meta-llama--Llama-3.1-8B--bnb-finetune",
        "meta-llama--Llama-3.1-8B-Instruct--bnb-4bit",
    ),
    "gptq weights of 3 bits are not supported": ("budecosystem--genz-70b-GPTQ",),
    "quantized weights of method 'mlx' are not supported": (
        "community--Qwen3.8-27B-MTPLX-Optimized-Speed",
        "mlx-community--Qwen3-14B-MLX-4bit",
    ),
    "names no architecture": ("community--llama3v",),
    "Phi-4-multimodal": ("microsoft--Phi-4-multimodal-instruct--cut",),
    "moe_latent_size": (
        "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
        "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
    ),
    "config.json: hidden_size must be a whole number >= 1, got None": ("nvidia--NVIDIA-Nemotron-Nano-9B-v2--mock",),
    "modelopt weights with quant_algo 'MIXED_PRECISION' are not supported": (
        "nvidia--Qwen3.6-27B-NVFP4",
        "nvidia--Qwen3.6-35B-A3B-NVFP4",
    ),
    "MiniCPM-V before 2.5": ("openbmb--MiniCPM-V",),
}

# Why a config that is read is not compared here.
NOT_COMPARED = {
    "Alibaba-NLP--gte-Qwen2-7B-instruct": "attends both ways, which decoders of this engine do not",
    "jinaai--jina-embeddings-v2-base-en": "transformers lacks it: tests/engine/test_encoders.py has a reference",
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": "leaves out the sizes of its tower, of 400 million weights",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": "leaves out the sizes of its tower, of 400 million weights",
}


def name_of(raw: Config) -> str:
    return str((raw.get("architectures") or [""])[0])


def reading_of(directory: Path, raw: Config) -> str:
    """Return why a config.json is not read; empty: it is, and only the weights are missing."""
    (directory / "config.json").write_text(json.dumps(raw))
    try:
        describe(directory, "model")
    except UnsupportedModelError as error:
        return str(error)
    except CheckpointError as error:
        return "; ".join(it for it in error.problems if not it.startswith("has no *.safetensors file"))
    raise AssertionError("a checkpoint without weights was described")


def test_every_config_is_read_or_refused_by_name(tmp_path: Path) -> None:
    found = {name: reading_of(tmp_path, raw) for name, raw in CONFIGS.items()}
    refused = {name: part for part, names in REFUSED.items() for name in names}
    assert {name for name, reason in found.items() if reason} == refused.keys()
    assert [(name, found[name]) for name, part in refused.items() if part not in found[name]] == []


READ = CONFIGS.keys() - {name for names in REFUSED.values() for name in names}
COMPARED = [name for name in CONFIGS if name in READ and name not in NOT_COMPARED]


@pytest.mark.alike(most=14)
@pytest.mark.parametrize("name", COMPARED)
def test_a_checkpoint_with_a_published_config_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    logits_of = make_published(tmp_path / "model", CONFIGS[name])
    with torch.no_grad(), TokenEngine(tmp_path / "model") as engine:
        if name_of(CONFIGS[name]).startswith(ENCODERS):
            (states,) = rows_of(engine.engine, [(PROMPT, None)], of_tokens=True)
            assert relative_error(torch.tensor(states), logits_of(PROMPT)) < TOLERANCE
            return
        response, logits = engine.generate(PROMPT, 4, "all")
        assert relative_error(logits, logits_of(PROMPT + response[:-1])) < TOLERANCE
