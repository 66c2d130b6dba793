"""Checkpoints as people save and name them: files, layouts and versions."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from lmdeploy import GenerationConfig, TurbomindEngineConfig, pipeline
from lmdeploy.hub.names import HubName
from lmdeploy.serve import api
from lmdeploy.turbomind.checkpoint import describe
from tests.support.layered_models import MODELS
from tests.support.published_tokenizers import train_pieces
from tests.support.tiny_models import make_small, make_tiny_llama
from tests.support.token_engine import TokenEngine, relative_error
from tests.unit.test_meta_llama import logits_by_metas_formulas, random_weights, write

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


def check_logits(folder: Path, model: Any, backend: str = "turbomind", tokens: int = 4) -> None:
    """Compare an engine's logits with those of a model of `transformers`."""
    with torch.no_grad(), TokenEngine(folder, backend=backend) as engine:
        response, logits = engine.generate(PROMPT, tokens, "all")
        expected = model(torch.tensor([PROMPT + response[:-1]])).logits[0]
    assert relative_error(logits, expected) < 1e-4


@pytest.mark.parametrize(("case", "backend"), CASES)
def test_both_engines_take_the_weights_that_transformers_takes(case: str, backend: str, tmp_path: Path) -> None:
    folder = make_small(tmp_path / "model", "LlamaForCausalLM")
    SAVED[case](folder, load_file(folder / WHOLE))
    check_logits(folder, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), backend)


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
    check_logits(folder, model)


@pytest.mark.parametrize("rows", [1000, 1100])
def test_inputs_of_layers_have_the_rows_that_the_config_says(rows: int, tmp_path: Path) -> None:
    architecture, fields = MODELS["Gemma 4 E2B"]
    folder = make_small(tmp_path / "model", architecture, **fields | {"vocab_size_per_layer_input": rows})
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    check_logits(folder, model, tokens=1)


TEXT, COUNT = "Call me Ishmael.", 12


def test_greedy_tokens_are_those_of_metas_formulas(tmp_path: Path) -> None:
    directory, weights = tmp_path / "llama-2-tiny", random_weights(512)
    directory.mkdir()
    train_pieces(directory)
    write(directory, weights, 2)
    config = TurbomindEngineConfig(dtype="float32", model_format="meta_llama", session_len=64, cache_max_entry_count=8)
    with pipeline(str(directory), backend_config=config) as pipe:
        response = pipe(TEXT, GenerationConfig(max_new_tokens=COUNT, ignore_eos=True), do_preprocess=False)
        ids = pipe.tokenizer.encode(TEXT)
    expected = list(ids)
    for _ in range(COUNT):
        expected.append(int(torch.argmax(logits_by_metas_formulas(weights, expected)[-1])))
    assert response.token_ids == expected[len(ids) :]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose version ``v2`` alone can be had, from one folder."""
    model = make_tiny_llama(tmp_path / "v2")
    (model / "chat_template.jinja").write_text("version 2: {{ messages[0].content }}")

    def find(records: Path, name: HubName, revision: str | None, hub_cache: Path | None) -> Any:
        assert (str(name), revision, hub_cache) == ("owner/name", "v2", tmp_path)
        return SimpleNamespace(path=model)

    monkeypatch.setattr("lmdeploy.hub.pulled.find", find)
    return model


def test_weights_tokenizer_and_template_of_a_pipeline_are_of_one_revision(repository: Path, tmp_path: Path) -> None:
    config = TurbomindEngineConfig(
        revision="v2", download_dir=str(tmp_path), dtype="float32", session_len=64, cache_max_entry_count=8
    )
    with pipeline("owner/name", backend_config=config) as pipe:
        assert pipe.chat_template.render([{"role": "user", "content": "Hi"}]) == "version 2: Hi"


def test_a_served_model_is_of_the_revision_asked_for(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    class Stop(Exception):
        pass

    def start(command: list[str], **_: Any) -> None:
        commands.append(command)
        raise Stop

    monkeypatch.setattr(api, "ChildProcess", start)
    with pytest.raises(Stop):
        api.serve("owner/name", backend_config=TurbomindEngineConfig(revision="v2", download_dir=str(tmp_path)))
    [command] = commands
    assert str(repository) in command
    assert "owner/name" not in command
