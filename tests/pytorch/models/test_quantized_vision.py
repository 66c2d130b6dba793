"""Vision-language models with quantized text parts: the PyTorch engine agrees with the dequantized weights."""

import functools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmdeploy import GenerationConfig, pipeline
from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.turbomind.text_part import is_of_text
from tests.pytorch.test_manual_table import is_linear
from tests.pytorch.test_quantized_models import FORMS
from tests.support import tiny_own_layouts as own
from tests.support import tiny_vision_models as tiny
from tests.support.both_engines import BACKENDS, config_for
from tests.support.glm_4v_reference import make_tiny_glm_4v
from tests.support.images import make_image
from tests.support.minicpmv_reference import make_tiny_minicpmv
from tests.support.quantized_checkpoints import quantize_checkpoint, with_values
from tests.support.qwen_vl_reference import make_tiny_qwen_vl_chat
from tests.support.scaled_checkpoints import FLOAT8, Form, quantize_stacks
from tests.support.token_engine import relative_error
from tests.support.xcomposer_reference import make_tiny_xcomposer

SETTINGS = {"session_len": 256, "cache_max_entry_count": 32, "cache_block_seq_len": 16, "num_tokens_per_iter": 20}
ALL = GenerationConfig(max_new_tokens=2, output_logits="all", do_sample=False, ignore_eos=True)
PROMPT = ("what is in this image?", make_image(40, 60))
FILE = "model.safetensors"
STACKS = Form("fp8", FLOAT8, "block", "weight_scale_inv", block=(8, 8))  # that divide gate and up

MODELS: dict[str, Callable[[Path], Path]] = {
    "Qwen2-VL": tiny.make_tiny_qwen_vl,
    "InternVL2 on Qwen2": own.make_tiny_internvl_chat,
    "InternVL2 on InternLM2": functools.partial(own.make_tiny_internvl_chat, text="internlm2"),
    "GLM-4.1V, by transformers' code": tiny.make_tiny_glm4v,
    "LLaVA 1.5": tiny.make_tiny_llava,
    "MiniCPM-V 2.6": make_tiny_minicpmv,
    "Qwen-VL": make_tiny_qwen_vl_chat,
    "DeepSeek-VL": own.make_tiny_deepseek_vl_original,
    "GLM-4V": make_tiny_glm_4v,
    "InternLM-XComposer2": make_tiny_xcomposer,
}
# All forms where Qwen2-VL is published in them, the others as 4-bit AWQ.
CASES = [("Qwen2-VL", form) for form in FORMS] + [(name, "awq") for name in MODELS if name != "Qwen2-VL"]


def is_of_awq(name: str) -> bool:
    """Return whether AWQ's tools quantize a tensor: no embedding, head or norm, nor what rows of images add."""
    return is_linear(name) and "Plora" not in name


def quantize_text(source: Path, target: Path, form: Any) -> dict[str, torch.Tensor]:
    """Write a copy whose text part is codes, the tower being numbers; return the values that the codes stand for."""
    tensors = load_file(source / FILE)
    tower = {name: tensors.pop(name) for name in list(tensors) if not is_of_text(name)}
    text = target.with_name("text to quantize")
    shutil.copytree(source, text)
    save_file(tensors, text / FILE, metadata={"format": "pt"})
    values = quantize_checkpoint(text, target, form, *([is_of_awq] if form == FORMS["awq"] else []))
    save_file(load_file(target / FILE) | tower, target / FILE, metadata={"format": "pt"})
    return values


def logits_of(directory: Path, backend: str = "pytorch") -> torch.Tensor:
    """Return the logits of the prompt's tokens."""
    with pipeline(str(directory), config_for(backend, **SETTINGS)) as pipe:
        response = pipe(PROMPT, ALL)
    return response.logits[: response.input_token_len]


@pytest.mark.alike(max_cases=4)
@pytest.mark.parametrize(("name", "form"), CASES)
def test_a_text_part_may_be_codes(name: str, form: str, tmp_path: Path) -> None:
    unquantized = MODELS[name](tmp_path / "plain")
    values = quantize_text(unquantized, tmp_path / "coded", FORMS[form])
    assert values
    expected = logits_of(with_values(unquantized, tmp_path / "numbers", values))
    got, reference = (logits_of(tmp_path / "coded", backend) for backend in ("pytorch", "turbomind"))
    assert float((got - expected).norm() / expected.norm()) < 0.1  # activations of 8 bits cost hundredths
    # One of 8 bits that the engines round differently, of values that differ by 1e-6, changes its token, and some later
    # ones by attention.
    of_tokens = [relative_error(*pair) for pair in zip(got, reference, strict=True)]
    assert median(of_tokens) < 1e-3
    assert max(of_tokens) < 0.02


@pytest.mark.parametrize("scales", ["block", "expert"])
def test_a_stack_of_experts_may_be_codes(scales: str, tmp_path: Path) -> None:
    unquantized = tiny.make_tiny_qwen_vl(tmp_path / "plain", kind="Qwen3VLMoe")
    values = quantize_text(unquantized, tmp_path / "coded", STACKS)
    stacks = quantize_stacks(tmp_path / "coded", STACKS, scales)
    assert stacks
    expected = logits_of(with_values(unquantized, tmp_path / "numbers", values | stacks))
    got, reference = (logits_of(tmp_path / "coded", backend) for backend in ("pytorch", "turbomind"))
    assert float((got - expected).norm() / expected.norm()) < 0.1  # activations of 8 bits cost hundredths
    assert relative_error(got, reference) < 1e-3


def test_a_stack_without_scales_is_refused_with_the_tensor(tmp_path: Path) -> None:
    quantize_text(tiny.make_tiny_qwen_vl(tmp_path / "plain", kind="Qwen3VLMoe"), tmp_path / "coded", STACKS)
    quantize_stacks(tmp_path / "coded", STACKS)
    tensors = load_file(tmp_path / "coded" / FILE)
    missing = next(name for name in tensors if name.endswith("experts.down_proj_scale_inv"))
    del tensors[missing]
    save_file(tensors, tmp_path / "coded" / FILE, metadata={"format": "pt"})
    for backend in BACKENDS:
        with pytest.raises(CheckpointError, match=re.escape(f"tensor {missing} is missing")):
            logits_of(tmp_path / "coded", backend)


def test_tools_that_quantize_the_text_part_alone_say_so_there(tmp_path: Path) -> None:
    unquantized = own.make_tiny_internvl_chat(tmp_path / "plain")
    quantize_text(unquantized, tmp_path / "coded", FORMS["awq"])
    expected = logits_of(tmp_path / "coded")
    file = tmp_path / "coded" / "config.json"
    config = json.loads(file.read_text())
    config["llm_config"]["quantization_config"] = config.pop("quantization_config")
    file.write_text(json.dumps(config))
    for backend in BACKENDS:
        assert relative_error(logits_of(tmp_path / "coded", backend), expected) < 1e-4


def test_a_quantized_tower_is_refused_with_the_tensor(tmp_path: Path) -> None:
    quantize_text(tiny.make_tiny_qwen_vl(tmp_path / "plain"), tmp_path / "coded", FORMS["smooth_quant int8"])
    tensors = load_file(tmp_path / "coded" / FILE)
    layer = "visual.blocks.0.mlp.fc1"
    [name] = [name for name in tensors if name.endswith(f"{layer}.weight")]
    tensors |= {name: tensors[name].to(torch.int8), name.replace("weight", "scale"): torch.ones(len(tensors[name]), 1)}
    save_file(tensors, tmp_path / "coded" / FILE, metadata={"format": "pt"})
    with pytest.raises(UnsupportedModelError, match=re.escape(f"tensor {name} of the vision tower is quantized")):
        logits_of(tmp_path / "coded")
