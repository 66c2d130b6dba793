"""`lmdeploy lite`: closer to the original than rounding alone, and read by packages that are not ours."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.lite.auto_awq import AwqSettings, auto_awq
from lmdeploy.lite.auto_gptq import GptqSettings, auto_gptq
from lmdeploy.lite.smooth_quant import SmoothQuantSettings, smooth_quant
from lmdeploy.turbomind.engine_settings import EngineConfig
from tests.engine.test_quantized_checkpoints import LIMIT, distance
from tests.support.quantized_checkpoints import Scheme, quantize_checkpoint
from tests.support.tiny_models import TOKENIZER_FILES, make_tiny
from tests.support.token_engine import TokenEngine

# Not the text that comes along for calibration.
TEXT = (Path(__file__).parent.parent / "data" / "moby_dick.txt").read_text(encoding="utf-8")[:1500]
LAYERS = 4
GROUP = 64


@pytest.fixture(scope="module")
def first_layers(default_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model's first layers, whose inputs differ in size as those of real models do."""
    directory = tmp_path_factory.mktemp("first-layers") / "model"
    directory.mkdir()
    for name in (*TOKENIZER_FILES, "generation_config.json"):
        shutil.copyfile(default_model_dir / name, directory / name)
    config = json.loads((default_model_dir / "config.json").read_text()) | {"num_hidden_layers": LAYERS}
    (directory / "config.json").write_text(json.dumps(config))
    tensors: dict[str, torch.Tensor] = {}
    for file in default_model_dir.glob("*.safetensors"):
        tensors |= load_file(file)
    kept = tuple(f"model.layers.{number}." for number in range(LAYERS))
    tensors = {n: t for n, t in tensors.items() if n.startswith(kept) or not n.startswith("model.layers.")}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def log_probabilities(directory: Path, config: EngineConfig | None = None) -> torch.Tensor:
    """Return an engine's log probabilities of every next token of the text, ``[tokens, vocab]``."""
    config = config or TurbomindEngineConfig(dtype="float32", cache_max_entry_count=16)
    with pipeline(str(directory), backend_config=config) as model:
        response = model(TEXT, GenerationConfig(max_new_tokens=1, output_logits="all"), do_preprocess=False)
        return torch.as_tensor(response.logits)[: response.input_token_len].double().log_softmax(-1)


def divergence(exact: torch.Tensor, other: torch.Tensor) -> float:
    """Return the mean Kullback-Leibler divergence in nats a token."""
    return float((exact.exp() * (exact - other)).sum(-1).mean())


def test_awq_is_closer_to_the_model_than_rounding_to_nearest(first_layers: Path, tmp_path: Path) -> None:
    auto_awq(first_layers, tmp_path / "awq", AwqSettings(w_group_size=GROUP, calib_samples=2, calib_seqlen=256))
    quantize_checkpoint(first_layers, tmp_path / "nearest", Scheme(group_size=GROUP))
    exact = log_probabilities(first_layers)
    awq, nearest = (divergence(exact, log_probabilities(tmp_path / name)) for name in ("awq", "nearest"))
    assert 0 < awq < 0.8 * nearest


PROMPT = [(37 * i * i + 11 * i) % 250 + 2 for i in range(40)]
COMMON: dict[str, Any] = {"calib_samples": 2, "calib_seqlen": 64, "format": "compressed-tensors"}
WRITERS: dict[str, Callable[[Path, Path], Path]] = {
    "AWQ": lambda source, target: auto_awq(source, target, AwqSettings(w_group_size=32, **COMMON)),
    "AWQ, 8 bits, whole rows": lambda source, target: auto_awq(
        source, target, AwqSettings(w_bits=8, w_group_size=-1, w_sym=True, **COMMON)
    ),
    "GPTQ": lambda source, target: auto_gptq(source, target, GptqSettings(**COMMON)),
    "SmoothQuant, int8": lambda source, target: smooth_quant(source, target, SmoothQuantSettings(**COMMON)),
    "SmoothQuant, fp8": lambda source, target: smooth_quant(
        source, target, SmoothQuantSettings(quant_dtype="fp8", **COMMON)
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_transformers_reads_the_numbers_that_the_engine_does(name: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "initializer_range": 0.05, "tie_word_embeddings": False}
    source = make_tiny(tmp_path / "source", "LlamaForCausalLM", **sizes)
    written = WRITERS[name](source, tmp_path / "written")
    model = AutoModelForCausalLM.from_pretrained(
        written, dtype=torch.float32, quantization_config=CompressedTensorsConfig(dequantize=True)
    ).eval()
    original = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    with torch.no_grad():
        read, exact = (network(torch.tensor([PROMPT])).logits[0] for network in (model, original))
    with TokenEngine(written, dtype="float32") as engine:
        served = engine.generate(PROMPT, 1, "all")[1]
    assert distance(served, read) < LIMIT
    # It is the model, but for rounding: what is read with a wrong scale or order is off by more than 1.
    assert distance(read, exact) < 0.3


def test_an_order_of_inputs_has_no_form_there() -> None:
    with pytest.raises(ValueError, match="no form for inputs in an order: leave --act-order or --format out"):
        GptqSettings(act_order=True, **COMMON)
    with pytest.raises(ValueError, match="format must be one of 'own', 'compressed-tensors', got 'gguf'"):
        AwqSettings(format="gguf")
