"""`lmdeploy lite smooth_quant`: the checkpoint it writes, and what it refuses. What it shares with auto_awq: there."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from lmdeploy.cli.main import main as run_cli
from lmdeploy.lite.smooth_quant import QUANT_DTYPES, SmoothQuantSettings, smooth_quant
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve
from tests.support.tiny_models import make_tiny
from tests.unit.test_auto_awq import distance, logits

VARIANTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("LlamaForCausalLM", {}, "int8"),
    "fp8": ("LlamaForCausalLM", {}, "fp8"),
    "all heads, biases": ("LlamaForCausalLM", {"num_key_value_heads": 4, "attention_bias": True}, "int8"),
    "qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": False}, "fp8"),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 16}, "int8"),
}


def settings(quant_dtype: str = "int8") -> SmoothQuantSettings:
    return SmoothQuantSettings(quant_dtype=quant_dtype, calib_samples=4, calib_seqlen=48)


def stored(directory: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for file in directory.glob("*.safetensors"):
        tensors |= load_file(file)
    return tensors


@pytest.mark.parametrize("name", VARIANTS)
def test_the_checkpoint_is_the_model_but_for_the_rounding(name: str, tmp_path: Path) -> None:
    architecture, overrides, quant_dtype = VARIANTS[name]
    sizes = {"hidden_size": 64, "initializer_range": 0.05, "vocab_size": 49152}
    directory = make_tiny(tmp_path / "model", architecture, **(sizes | overrides))
    smooth_quant(directory, tmp_path / "w8a8", settings(quant_dtype))
    assert resolve(tmp_path / "w8a8").spec.num_layers == 2

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ids = Tokenizer(str(directory)).encode("It was the best of times, it was the worst of times")
    exact = logits(model, ids)
    tensors = stored(tmp_path / "w8a8")
    scales = {key: tensors.pop(key) for key in list(tensors) if key.endswith(".scale")}
    assert len(scales) == 2 * 7
    for key, scale in scales.items():
        quantized = tensors[key.replace(".scale", ".weight")]
        assert quantized.dtype == QUANT_DTYPES[quant_dtype][0]
        assert scale.dtype == torch.float32
        assert scale.shape == (quantized.shape[0], 1)
        assert (
            quantized.float().abs().amax(1) == QUANT_DTYPES[quant_dtype][1]
        ).all()  # every output uses its whole range
        tensors[key.replace(".scale", ".weight")] = quantized.float() * scale
    missing, unknown = model.load_state_dict({key: value.float() for key, value in tensors.items()}, strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unknown
    # Norms and weights are not the old ones, but together they are the old function. int8 costs some 0.01, fp8 0.04.
    assert distance(logits(model, ids), exact) < (0.03 if quant_dtype == "int8" else 0.1)


def test_config_is_that_of_lmdeploys_checkpoints(tmp_path: Path) -> None:
    source = make_tiny(tmp_path / "model", "LlamaForCausalLM", hidden_size=64)
    smooth_quant(source, tmp_path / "w8a8", settings("fp8"))
    config = json.loads((tmp_path / "w8a8" / "config.json").read_text())
    assert config["quantization_config"] == {"quant_method": "smooth_quant", "quant_dtype": "float8_e4m3fn"}
    assert config["dtype"] == "float16"
    assert not (tmp_path / "w8a8" / ".smooth_quant").exists()


def test_another_type_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="quant_dtype must be one of int8, fp8, got 'int4'"):
        settings("int4")


def test_the_command_writes_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_tiny(tmp_path / "model", "LlamaForCausalLM", hidden_size=64)
    arguments = ["--quant-dtype", "fp8", "--calib-samples", "2", "--calib-seqlen", "32", "--device", "cpu"]
    assert run_cli(["lite", "smooth_quant", str(source), "--work-dir", str(tmp_path / "w8a8"), *arguments]) == 0
    assert f"wrote {tmp_path / 'w8a8'}" in capsys.readouterr().out
    assert resolve(tmp_path / "w8a8").spec.hidden_size == 64
    assert run_cli(["lite", "smooth_quant", str(tmp_path / "w8a8"), "--work-dir", str(tmp_path / "again")]) == 1
    assert "is quantized already" in capsys.readouterr().err
