"""`lmdeploy lite`: statistics of layers, rounding that makes up for errors, and what smooth_quant writes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from lmdeploy.cli.main import main as run_cli
from lmdeploy.lite.auto_gptq import round_compensated
from lmdeploy.lite.calibrate import INPUTS, OUTPUTS, CalibrationSettings, calibrate
from lmdeploy.lite.calibration import built_in_text, load_text, samples_of
from lmdeploy.lite.rounding import Grid, round_matrix
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


@pytest.mark.alike(max_cases=3)
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


SETTINGS = CalibrationSettings(calib_samples=3, calib_seqlen=40)


def test_statistics_are_those_of_transformers_and_an_interrupted_run_continues(tmp_path: Path) -> None:
    source = make_tiny(tmp_path / "model", "Qwen2ForCausalLM")

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calibrate(source, tmp_path / "made", SETTINGS, progress=interrupt)
    with pytest.raises(FileExistsError, match="differs in calib_samples, text"):
        calibrate(source, tmp_path / "made", CalibrationSettings(calib_samples=2, calib_seqlen=40))
    calibrate(source, tmp_path / "made", SETTINGS)
    inputs, outputs = (torch.load(tmp_path / "made" / name, weights_only=True) for name in (INPUTS, OUTPUTS))

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    seen: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            seen[name] = []
            module.register_forward_hook(
                lambda _, args, output, name=name: seen[name].append((args[0].flatten(0, -2), output.flatten(0, -2)))
            )
    with torch.no_grad():
        for piece in samples_of(load_text(None), Tokenizer(str(source)), 3, 40):
            model(torch.tensor([piece]))
    assert inputs["max"].keys() == outputs["max"].keys() == seen.keys()
    for name, calls in seen.items():
        for stored, rows in zip((inputs, outputs), map(torch.cat, zip(*calls, strict=True)), strict=True):
            torch.testing.assert_close(stored["max"][name], rows.amax(0), rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(stored["min"][name], rows.amin(0), rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(stored["absmean"][name], rows.abs().mean(0), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("by_importance", [False, True])
@pytest.mark.parametrize("group", [24, 32, 192])
def test_errors_that_are_made_up_for_change_outputs_less_than_rounding_to_nearest(
    group: int, by_importance: bool
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(16, 192)
    x = torch.randn(2000, 40) @ torch.randn(40, 192) + 0.3 * torch.randn(2000, 192)
    grid = Grid(4, group, is_symmetric=True)
    made = round_compensated(weight, x.T @ x / len(x), grid, by_importance=by_importance)
    quantized, zeros, scales = made.rounded.quantized, made.rounded.zeros, made.rounded.scales
    values = (quantized - zeros[:, made.groups]) * scales.float()[:, made.groups]
    native, nearest = (
        (x @ (found - weight).T).square().mean() for found in (values, round_matrix(weight, grid).numbers())
    )
    assert native < 0.5 * nearest


def test_the_text_that_comes_along_is_long_enough_for_the_default_pieces() -> None:
    assert len(built_in_text()) > 2_500_000  # no usual tokenizer needs 9 characters a token
