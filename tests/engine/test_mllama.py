"""Llama 3.2 Vision answers texts as `transformers` does, and refuses what it does not see."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MllamaConfig, MllamaForConditionalGeneration

from lmdeploy import TurbomindEngineConfig, pipeline
from lmdeploy.errors import UnsupportedModelError
from lmdeploy.turbomind.checkpoint import describe
from tests.engine.test_model_families import FURTHER, PROMPT, TOLERANCE
from tests.support.tiny_models import make_tiny
from tests.support.token_engine import TokenEngine, relative_error


def make_mllama(directory: Path, **text: Any) -> Path:
    """Make a tiny checkpoint: seven layers, of which the fourth looks at pictures, beside a tokenizer."""
    make_tiny(directory, "LlamaForCausalLM")
    for file in directory.glob("*.safetensors*"):
        file.unlink()
    config = MllamaConfig(
        vision_config={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_global_layers": 1,
            "attention_heads": 2, "image_size": 28, "patch_size": 14, "max_num_tiles": 1,
            "intermediate_layers_indices": [0], "supported_aspect_ratios": [[1, 1]], "vision_output_dim": 64,
        },
        text_config={
            "vocab_size": 49152, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 7,
            "num_attention_heads": 4, "num_key_value_heads": 2, "cross_attention_layers": [3], "pad_token_id": 0,
            "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2,
            **text,
        },
        image_token_index=49152,
    )  # fmt: skip
    torch.manual_seed(0)
    model = MllamaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(directory)
    return directory


def test_logits_of_texts_are_those_of_transformers(tmp_path: Path) -> None:
    directory = make_mllama(tmp_path / "model")
    model = MllamaForConditionalGeneration.from_pretrained(directory, dtype=torch.float32).eval()
    with TokenEngine(directory) as engine, torch.no_grad():
        answer, logits = engine.answer(PROMPT, 8, "all")
        asked = PROMPT + answer[:-1]
        assert relative_error(logits, model(torch.tensor([asked])).logits[0]) < TOLERANCE
        longer = PROMPT + answer + FURTHER
        again, logits = engine.answer(longer, 4, "generation")
        want = model(torch.tensor([longer + again[:-1]])).logits[0]
        assert relative_error(logits, want[len(longer) - 1 :]) < TOLERANCE


def test_pictures_are_refused(tmp_path: Path) -> None:
    directory = make_mllama(tmp_path / "model")
    config = TurbomindEngineConfig(session_len=128, cache_max_entry_count=8)
    with pipeline(str(directory), backend_config=config) as pipe, pytest.raises(ValueError, match="reads text only"):
        pipe([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}])


def test_another_order_of_layers_is_refused(tmp_path: Path) -> None:
    directory = make_mllama(tmp_path / "model")
    raw = json.loads((directory / "config.json").read_text())
    raw["text_config"]["cross_attention_layers"] = [2]
    (directory / "config.json").write_text(json.dumps(raw))
    with pytest.raises(UnsupportedModelError, match=r"every fifth layer from layer 3 on .*, got \[2\]"):
        describe(directory, "model")
