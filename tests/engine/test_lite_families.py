"""Every family that the engine serves is quantized, or refused with the reason.

A tiny random checkpoint is quantized and run by the engine. Its logits must be those of the numbers that the codes
stand for, decoded by the test, but for the rounding of activations, and near those of the model it was made from: a
norm, bias or row scaled at the wrong place is much further off.
"""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.lite.auto_awq import AwqSettings, auto_awq
from lmdeploy.lite.auto_gptq import GptqSettings, auto_gptq
from lmdeploy.lite.smooth_quant import SmoothQuantSettings, smooth_quant
from lmdeploy.turbomind.families import families
from lmdeploy.turbomind.families.encoders import names_of
from tests.engine.test_model_families import CASES, Case
from tests.support import published
from tests.support.cogvlm_reference import make_tiny_cogvlm
from tests.support.hybrid_models import MODELS as HYBRID_MODELS
from tests.support.mllama_reference import make_tiny_mllama
from tests.support.mono_internvl_reference import make_tiny_mono_internvl
from tests.support.published import as_is
from tests.support.quantized_checkpoints import save_dequantized
from tests.support.tiny_encoders import ENCODERS, make_encoder
from tests.support.tiny_models import make_small
from tests.support.tiny_vision_models import make_tiny_gemma3, make_tiny_llava, make_tiny_qwen_vl
from tests.support.token_engine import TokenEngine
from tests.support.xcomposer_reference import make_tiny_xcomposer

PROMPT = [(37 * i * i + 11 * i) % 250 + 2 for i in range(40)]
TEXT = {"calib_samples": 2, "calib_seqlen": 96}
MOLMOE = {"num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 64, "tie_word_embeddings": False}
EIGHT_HEADS = {"num_attention_heads": 8}
# Cases of test_model_families.py by architecture, where it is not that of `transformers`...
CHOSEN = {
    "BaichuanForCausalLM": "Baichuan 13B",
    "BailingHybridForCausalLM": "Ling 3.0",
    "BailingMoeForCausalLM": "Ling-lite",
    "BailingMoeV2ForCausalLM": "Ling 2",
    "ChatGLMModel": "ChatGLM3",
    "DeciLMForCausalLM": "Llama-Nemotron Super",
    "DeepseekForCausalLM": "DeepSeek-MoE",
    "ExaoneForCausalLM": "EXAONE 3.5",
    "InternLM2ForCausalLM": "InternLM2",
    "InternLM3ForCausalLM": "InternLM3",
    "InternLMForCausalLM": "InternLM",
    "KimiLinearForCausalLM": "Kimi Linear",
    "MiMoForCausalLM": "MiMo",
    "MiniCPMForCausalLM": "MiniCPM",
    "MiniMaxM3ForCausalLM": "MiniMax-M3",
    "MixFormerSequentialForCausalLM": "Phi-2 of the first release",
    "MptForCausalLM": "MPT",
    "OlmoHybridForCausalLM": "OLMo Hybrid",
    "Phi4MMForCausalLM": "Phi-4-multimodal",
    "QWenLMHeadModel": "Qwen",
    "RWForCausalLM": "Falcon 40B of the first release",
    "XverseForCausalLM": "XVERSE",
    # ... and where the first case has less to round than another.
    "CohereForCausalLM": "Command R",
    "DeepseekV2ForCausalLM": "DeepSeek-V2",
    "FalconForCausalLM": "Falcon 40B",
    "FalconH1ForCausalLM": "Falcon-H1 with norms",
    "JambaForCausalLM": "Jamba with experts",
    "Llama4ForCausalLM": "Llama 4 without experts",
    "LlamaForCausalLM": "Llama with biases",
    "MistralForCausalLM": "Mistral with windows",
    "NemotronHForCausalLM": "Nemotron 3",
    "Phi3ForCausalLM": "Phi-3.5",
    "PhimoeForCausalLM": "Phi-3.5-MoE with longrope",
    "Qwen2ForCausalLM": "Qwen2 with windows",
}
FURTHER = {
    "Falcon 7B, halves that share a norm": CASES["Falcon 7B"],
    "Falcon RW": CASES["Falcon RW"],
    "Molmo": Case("Qwen2ForCausalLM", {"tie_word_embeddings": False}, published.molmo),
    "MolmoE": Case("OlmoeForCausalLM", MOLMOE, published.molmoe),
}
OTHER_NAMES = {"BaiChuanForCausalLM", "ChatGLMForConditionalGeneration", "MPTForCausalLM", "PhiMoEForCausalLM"}
OTHER_NAMES |= {"IQuestCoderForCausalLM", "Step3p7FlashForCausalLM", "BailingMoeV3ForCausalLM", "PaddleOCRTextModel"}
OWN_WEIGHTS: dict[str, Callable[[Path], Path]] = {
    "CogVLMForCausalLM": make_tiny_cogvlm,
    "InternLM2VEForCausalLM": make_tiny_mono_internvl,
    "InternLMXComposer2ForCausalLM": make_tiny_xcomposer,
}
SHOWN_ELSEWHERE = {*OWN_WEIGHTS, "MolmoForCausalLM", "OLMoForCausalLM", "MllamaForConditionalGeneration"}
STACKED = r"holds all experts of a layer in one tensor, .* serve it with --weight-bits"
REJECTED = {
    "DbrxForCausalLM": ("DBRX", STACKED),
    "Glm5NextTextModel": ("GLM-5-Next", r"has several residual streams: serve it with --weight-bits"),
    "DeepseekV4ForCausalLM": ("DeepSeek-V4", r"has several residual streams: serve it with --weight-bits"),
    "Gemma3nForCausalLM": ("Gemma 3n", r"has several residual streams: serve it with --weight-bits"),
    "HYV4ForCausalLM": ("HY4", r"has several residual streams: serve it with --weight-bits"),
    "MuseGlimmerTextModel": ("Muse Glimmer", r"_norm.weight is no tensor of the checkpoint, .* --weight-bits"),
    "NanoChatForCausalLM": ("NanoChat", r"attention_norm.weight is no tensor of the checkpoint, .* --weight-bits"),
    "OlmoForCausalLM": ("OLMo", r"attention_norm.weight is no tensor of the checkpoint, .* --weight-bits"),
    "Qwen4ExpForCausalLM": ("Qwen 4", r"has several residual streams: serve it with --weight-bits"),
    "RecurrentGemmaForCausalLM": (
        "RecurrentGemma",
        r"input_gate_weight is laid out as \[in, out\], .* serve it with --weight-bits",
    ),
    "Step3p5ForCausalLM": ("Step 3.5", STACKED),
    "GPT2LMHeadModel": ("GPT-2", r"c_attn\.weight is laid out as \[in, out\], .* serve it with --weight-bits"),
    "GptOssForCausalLM": ("GPT-OSS", STACKED),
    "Mistral4ForCausalLM": ("Mistral Small 4", STACKED),
    "Zamba2ForCausalLM": ("Zamba2", r"has layers that share blocks: serve it with --weight-bits"),
    "GraniteMoeForCausalLM": ("Granite MoE", STACKED),
    "GraniteMoeSharedForCausalLM": ("Granite MoE with a shared expert", STACKED),
    "GraniteMoeSWAForCausalLM": ("Granite SWA with experts", STACKED),
}
FIRST = {case.architecture: name for name, case in reversed(CASES.items()) if case.publish is as_is}
SHOWN = {name: case for name, case in (FIRST | CHOSEN).items() if name in families() and name not in REJECTED}
SIZES: dict[str, dict[str, Any]] = {
    "Phi-3.5": EIGHT_HEADS,
    "Phi-3.5-MoE with longrope": EIGHT_HEADS,
    "Falcon 40B of the first release": {"ffn_hidden_size": 256},
    "Helium": {"head_dim": 16},
    "Mamba2": {"head_dim": 16},
    "OPT": {"word_embed_proj_dim": 64},
    "Gemma 4 E2B": {"head_dim": 16, "global_head_dim": 32},
    "Gemma 4 12B": {
        "head_dim": 16,
        "global_head_dim": 32,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    # With random scores, rounding lets tokens attend to other ones: here they attend to all.
    "DeepSeek-V3.2": {"index_topk": 512},
    "GLM-5": {"index_topk": 512},
    "MiniMax-M3": {"index_topk_blocks": 8},
}


# Where norms follow attention and MLP alone, they spread the errors of each. Unrelated logits would be 1.4 apart.
NEARNESS = {"OLMo 3": 0.7}
# A state adds up the errors of rounded activations.
ROUNDED = 0.06
ROUNDED_IN_STATES = 0.09


def soften_scores(directory: Path) -> None:
    """Give norms of queries the factor ``head_dim**-0.5``, which Gemma 4's scores lack, as training does.

    With random norms alone, one token takes nearly all of each softmax, and another one after the least rounding.
    """
    file = directory / "model.safetensors"
    tensors = load_file(file)
    for name, weight in tensors.items():
        if name.endswith("q_norm.weight"):
            tensors[name] = weight * weight.numel() ** -0.5
    save_file(tensors, file, metadata={"format": "pt"})


SOFTENED = {"Gemma 4 E2B", "Gemma 4 12B"}


def make_case(directory: Path, name: str, case: Case) -> Path:
    sizes = {} if name == "DBRX" else {"hidden_size": 64, "initializer_range": 0.05}
    make_small(directory, case.architecture, **(sizes | case.overrides | SIZES.get(name, {})))
    case.publish(directory)
    if name in SOFTENED:
        soften_scores(directory)
    return directory


def logits(directory: Path) -> torch.Tensor:
    with TokenEngine(directory) as engine:
        return engine.generate(PROMPT, 1, "all")[1][: len(PROMPT)]


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the median of the rows' distances: where rounding lets a token go to another expert, a row is far off."""
    return float(((a - b).norm(dim=-1) / b.norm(dim=-1)).median())


def check(
    source: Path, method: Callable[[Path, Path], object], nearness: float, folder: Path, rounded: float = ROUNDED
) -> None:
    """Quantize a checkpoint, and compare with the numbers that the codes stand for and with the model."""
    method(source, folder / "made")
    save_dequantized(folder / "made", folder / "decoded")
    found = logits(folder / "made")
    assert distance(found, logits(folder / "decoded")) < rounded
    assert 0 < distance(found, logits(source)) < nearness
    shutil.rmtree(folder / "made")
    shutil.rmtree(folder / "decoded")


def awq(source: Path, target: Path) -> object:
    return auto_awq(source, target, AwqSettings(**TEXT))


def gptq(source: Path, target: Path) -> object:
    return auto_gptq(source, target, GptqSettings(act_order=True, **TEXT))


def int8(source: Path, target: Path) -> object:
    return smooth_quant(source, target, SmoothQuantSettings(**TEXT))


@pytest.mark.alike(max_cases=10)
@pytest.mark.parametrize("name", [*SHOWN.values(), *FURTHER])
def test_a_family_is_made_smaller(name: str, tmp_path: Path) -> None:
    source = make_case(tmp_path / "model", name, FURTHER[name] if name in FURTHER else CASES[name])
    check(source, awq, NEARNESS.get(name, 0.5), tmp_path)
    rounded = ROUNDED_IN_STATES if name in HYBRID_MODELS else ROUNDED
    check(source, int8, rounded, tmp_path, rounded)


@pytest.mark.parametrize("name", ["InternLM2", "Falcon 40B", "Qwen2-MoE", "DeepSeek-V2"])
def test_gptq_in_order_of_importance_makes_a_family_smaller(name: str, tmp_path: Path) -> None:
    check(make_case(tmp_path / "model", name, CASES[name]), gptq, 0.5, tmp_path)


SEEING: dict[str, Callable[[Path], Path]] = {
    "LLaVA": make_tiny_llava,
    "Gemma 3": make_tiny_gemma3,
    "Qwen2-VL": make_tiny_qwen_vl,
    "Llama 3.2 Vision": make_tiny_mllama,
}


@pytest.mark.parametrize("name", SEEING)
def test_the_text_part_of_a_model_that_sees_is_made_smaller(name: str, tmp_path: Path) -> None:
    source = SEEING[name](tmp_path / "model")
    check(source, awq, 0.8, tmp_path)


@pytest.mark.parametrize("architecture", REJECTED)
def test_a_family_that_no_file_has_a_form_for_is_refused_with_the_reason(architecture: str, tmp_path: Path) -> None:
    name, reason = REJECTED[architecture]
    source = make_case(tmp_path / "model", name, CASES[name])
    for method in (awq, int8):
        with pytest.raises(UnsupportedModelError, match=reason):
            method(source, tmp_path / "made")
    assert not (tmp_path / "made").exists()


FURTHER_REJECTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "experts in one tensor of a model that sees": (partial(make_tiny_qwen_vl, kind="Qwen3VLMoe"), STACKED),
    **{name: (make, f"{name} has weights for rows of images alone: serve it") for name, make in OWN_WEIGHTS.items()},
    "experts of 4 bits": (
        partial(make_case, name="GPT-OSS as published", case=CASES["GPT-OSS as published"]),
        r"is quantized already \(mxfp4\): serve it as it is",
    ),
    "an encoder": (
        partial(make_encoder, family="Bert"),
        "encoders cannot be quantized: serve them with --weight-bits",
    ),
}


@pytest.mark.parametrize("name", FURTHER_REJECTED)
def test_what_cannot_be_made_smaller_is_refused_with_what_to_do(name: str, tmp_path: Path) -> None:
    make, reason = FURTHER_REJECTED[name]
    make(tmp_path / "model")
    with pytest.raises((CheckpointError, UnsupportedModelError), match=reason):
        awq(tmp_path / "model", tmp_path / "made")


def test_every_family_is_shown() -> None:
    encoders = {
        name for family in (*ENCODERS, "JinaEmbeddingsV5", "New") for name in names_of(family)
    } & families().keys()
    elsewhere = OTHER_NAMES | SHOWN_ELSEWHERE | {"Qwen3VLMoeTextModel", "HF_ColBERT"} | encoders
    assert SHOWN.keys() | REJECTED.keys() | elsewhere == families().keys()
