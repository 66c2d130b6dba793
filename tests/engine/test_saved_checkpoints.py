"""Checkpoints as people save them: the files, not the settings, say which weights a model has.

Both engines compute what ``transformers`` computes from the same folder.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from lmdeploy.turbomind.checkpoint import describe
from tests.support.layered_models import MODELS
from tests.support.tiny_models import make_small
from tests.support.token_engine import TokenEngine, relative_error

PROMPT = [(37 * i * i + 11 * i) % 900 + 50 for i in range(24)]  # none is padding, whose row is 0
WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
Tensors = dict[str, Tensor]


def _other(tensors: Tensors) -> Tensors:
    """Return a second set of the same names."""
    return {name: 2 * tensor + 0.1 for name, tensor in tensors.items()}


def _own_output(folder: Path, tensors: Tensors) -> None:
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].flip(0).contiguous()}, folder / WHOLE)


def _output_twice(folder: Path, tensors: Tensors) -> None:
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, folder / WHOLE)


def _alongside(*names: str) -> Callable[[Path, Tensors], None]:
    def save(folder: Path, tensors: Tensors) -> None:
        for name in names:
            save_file(_other(tensors), folder / name)

    return save


def _stale_index(folder: Path, tensors: Tensors) -> None:
    files = dict.fromkeys(tensors, "model-00001-of-00002.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))


def _more_than_the_index_names(folder: Path, tensors: Tensors) -> None:
    (folder / WHOLE).rename(folder / "model-00001-of-00001.safetensors")
    files = dict.fromkeys(tensors, "model-00001-of-00001.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    save_file(_other(tensors), folder / "model-new.safetensors")


SAVED: dict[str, Callable[[Path, Tensors], None]] = {
    "tied, with another output layer": _own_output,
    "tied, with the embedding twice": _output_twice,
    "a second set of weights": _alongside("model_ema.safetensors", "model.ema.safetensors", "pytorch_ema.safetensors"),
    "another layout": _alongside("consolidated.safetensors"),
    "an adapter and an optimizer": _alongside("adapter_model.safetensors", "optimizer.safetensors"),
    "an index of files that are gone": _stale_index,
    "files that the index does not name": _more_than_the_index_names,
}

# Both engines list the files in one place; which layers they tie, each decides for its own models.
CASES = [*((case, "turbomind") for case in SAVED), ("tied, with another output layer", "pytorch")]


@pytest.mark.parametrize(("case", "backend"), CASES)
def test_both_engines_take_the_weights_that_transformers_takes(case: str, backend: str, tmp_path: Path) -> None:
    folder = make_small(tmp_path / "model", "LlamaForCausalLM")
    SAVED[case](folder, load_file(folder / WHOLE))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad(), TokenEngine(folder, backend=backend) as engine:
        response, logits = engine.generate(PROMPT, 4, "all")
        expected = model(torch.tensor([PROMPT + response[:-1]])).logits[0]
    assert relative_error(logits, expected) < 1e-4


def test_an_output_layer_that_is_the_embedding_is_not_kept_twice(tmp_path: Path) -> None:
    folder = make_small(tmp_path / "model", "LlamaForCausalLM")
    _output_twice(folder, load_file(folder / WHOLE))
    assert describe(folder, "model").spec.tied_embeddings


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model.", ""])
def test_a_decoder_is_found_below_the_prefixes_of_models_that_see(prefix: str, tmp_path: Path) -> None:
    folder = make_small(tmp_path / "model", "LlamaForCausalLM")
    tensors = load_file(folder / WHOLE)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    save_file({prefix + name.removeprefix("model."): tensor for name, tensor in tensors.items()}, folder / WHOLE)
    with torch.no_grad(), TokenEngine(folder) as engine:
        response, logits = engine.generate(PROMPT, 4, "all")
        expected = model(torch.tensor([PROMPT + response[:-1]])).logits[0]
    assert relative_error(logits, expected) < 1e-4


@pytest.mark.parametrize("rows", [1000, 1100])
def test_inputs_of_layers_have_the_rows_that_the_config_says(rows: int, tmp_path: Path) -> None:
    architecture, fields = MODELS["Gemma 4 E2B"]
    folder = make_small(tmp_path / "model", architecture, **fields | {"vocab_size_per_layer_input": rows})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad(), TokenEngine(folder) as engine:
        _, logits = engine.generate(PROMPT, 1, "all")
        expected = model(torch.tensor([PROMPT])).logits[0]
    assert relative_error(logits, expected) < 1e-4
