"""SmoothQuant's output is close to the original model, and closer than rounding alone where x is 8 bits too."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from lmdeploy import PytorchEngineConfig
from lmdeploy.lite.smooth_quant import SmoothQuantSettings, smooth_quant
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine import Engine
from tests.engine.test_auto_awq import TEXT, divergence, first_layers, log_probabilities
from tests.support.quantized_checkpoints import quantize_checkpoint
from tests.support.scaled_checkpoints import Form

__all__ = ["first_layers"]  # a fixture


def smoothed(source: Path, target: Path, quant_dtype: str) -> Path:
    return smooth_quant(source, target, SmoothQuantSettings(quant_dtype=quant_dtype, calib_samples=2, calib_seqlen=256))


def cross_entropy(log_probabilities: torch.Tensor, directory: Path) -> float:
    """Return the mean of what each token of the text costs after those before it, in nats."""
    ids = torch.tensor(Tokenizer(str(directory)).encode(TEXT))
    return float(-log_probabilities[:-1].gather(1, ids[1:, None]).mean())


@pytest.mark.parametrize(
    ("quant_dtype", "limit"), [("int8", 0.005), pytest.param("fp8", 0.01, marks=pytest.mark.thorough)]
)
def test_the_perplexity_is_close_to_the_models(
    quant_dtype: str, limit: float, first_layers: Path, tmp_path: Path
) -> None:
    exact = log_probabilities(first_layers)
    found = log_probabilities(smoothed(first_layers, tmp_path / "w8a8", quant_dtype))
    exact_loss, loss = cross_entropy(exact, first_layers), cross_entropy(found, first_layers)
    assert abs(loss / exact_loss - 1) < limit
    assert 0 < divergence(exact, found) < 0.01


@pytest.mark.parametrize("quant_dtype", ["int8", pytest.param("fp8", marks=pytest.mark.thorough)])
def test_the_pytorch_engine_runs_it_with_the_model_s_perplexity(
    quant_dtype: str, first_layers: Path, tmp_path: Path
) -> None:
    config = PytorchEngineConfig(tp=1, session_len=512, num_gpu_blocks=16)
    exact = log_probabilities(first_layers, config)
    directory = smoothed(first_layers, tmp_path / "w8a8", quant_dtype)
    found = log_probabilities(directory, config)
    assert abs(cross_entropy(found, first_layers) / cross_entropy(exact, first_layers) - 1) < 0.01
    with pytest.raises(ValueError, match="model_format is awq, but the checkpoint's weights are smooth_quant"):
        Engine(str(directory), {"model_format": "awq"}, "pytorch")


def run_with_rounded_tokens(directory: Path, source: Path) -> torch.Tensor:
    """Return log probabilities of `transformers` run on an int8 checkpoint, each layer's inputs rounded by token."""
    tensors: dict[str, torch.Tensor] = {}
    for file in directory.glob("*.safetensors"):
        tensors |= load_file(file)
    scales = {key: tensors.pop(key) for key in list(tensors) if key.endswith(".scale")}
    for key, scale in scales.items():
        name = key.replace(".scale", ".weight")
        tensors[name] = tensors[name].float() * scale
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    model.load_state_dict({key: value.float() for key, value in tensors.items()}, strict=False)

    def round_input(module: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        step = args[0].abs().amax(-1, keepdim=True) / 127
        return ((args[0] / step).round() * step, *args[1:])

    for key in scales:
        model.get_submodule(key.removesuffix(".scale")).register_forward_pre_hook(round_input)
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([Tokenizer(str(source)).encode(TEXT)])).logits[0]
    return logits.double().log_softmax(-1)


def test_smoothing_is_worth_its_while_where_a_token_has_one_scale(first_layers: Path, tmp_path: Path) -> None:
    smoothed(first_layers, tmp_path / "smooth", "int8")
    quantize_checkpoint(first_layers, tmp_path / "nearest", Form("smooth_quant", torch.int8, "channel", "scale"))
    exact = log_probabilities(first_layers)
    smooth, nearest = (
        divergence(exact, run_with_rounded_tokens(tmp_path / name, first_layers)) for name in ("smooth", "nearest")
    )
    assert 0 < smooth < 0.8 * nearest
