"""AWQ is worth its while: a quantized model stays closer to the original than one whose weights are just rounded."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.lite.auto_awq import AwqSettings, auto_awq
from lmdeploy.turbomind.engine_settings import EngineConfig
from tests.support.quantized_checkpoints import Scheme, quantize_checkpoint
from tests.support.tiny_models import TOKENIZER_FILES

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
