"""Vectors and weights of tokens: hidden states of ``transformers``, and the published layers of them in torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import linear, normalize

import lmdeploy
from lmdeploy.model_metadata.token_heads import token_heads_of
from lmdeploy.offline.texts import rows_of
from lmdeploy.tokenizer import Tokenizer
from tests.support.tiny_encoders import hidden_states, make_encoder, texts_of, write_modules
from tests.support.tiny_models import make_tiny

LENGTHS = (1, 40, 3, 90, 17)
NEAR = 1e-4
Layer = tuple[torch.Tensor, torch.Tensor]


def states_of(pipe: Any, model: Any, text: str) -> tuple[list[int], torch.Tensor]:
    """Return a text's tokens and their hidden states in ``transformers``, float32."""
    ids: list[int] = pipe.tokenizer.hf_tokenizer(text)["input_ids"]
    return ids, torch.tensor(hidden_states(model, ids), dtype=torch.float32)


def random_layer(outputs: int, inputs: int = 48) -> Layer:
    rng = torch.Generator().manual_seed(outputs)
    return torch.randn(outputs, inputs, generator=rng) / 4, torch.randn(outputs, generator=rng) / 4


def save_pickled(layer: Layer, file: Path) -> None:
    torch.save(dict(zip(("weight", "bias"), layer, strict=True)), file)


def assert_near(found: np.ndarray[Any, Any], expected: torch.Tensor) -> None:
    assert found.shape == tuple(expected.shape)
    assert np.abs(found - expected.numpy()).max() <= NEAR * expected.abs().max().item()


@pytest.mark.parametrize("mode", ["cls_token", "mean_tokens"])
def test_without_layers_they_are_the_hidden_states(mode: str, tmp_path: Path) -> None:
    model = make_encoder(tmp_path, "Bert")
    write_modules(tmp_path, mode, "Normalize")
    texts = texts_of(LENGTHS)
    with lmdeploy.pipeline(str(tmp_path)) as pipe:
        pooled = pipe.embed(texts)
        vectors = pipe.embed_tokens(texts)
        for text, found in zip(texts, vectors, strict=True):
            assert_near(found, states_of(pipe, model, text)[1])
            assert (pipe.embed_tokens(text) == found).all()
        assert (pipe.embed(texts) == pooled).all()  # after steps that had both


def test_both_kinds_run_in_one_step(tmp_path: Path) -> None:
    make_encoder(tmp_path, "Bert")
    ids = [[2, *range(5, 5 + length), 3] for length in LENGTHS]
    with lmdeploy.pipeline(str(tmp_path)) as pipe:
        found: dict[int, Any] = {}
        for number, tokens in enumerate(ids * 2):
            pipe.engine.embed(tokens, lambda o, n=number: found.update({n: o.embedding}), of_tokens=number % 2 == 0)
        while len(found) < 2 * len(ids):
            rows_of(pipe.engine, [([2, 3], None)])
        for number, tokens in enumerate(ids * 2):
            (alone,) = rows_of(pipe.engine, [(tokens, None)], of_tokens=number % 2 == 0)
            assert alone.shape == (len(tokens) if number % 2 == 0 else 1, 48)
            assert (alone == found[number]).all()


@pytest.mark.parametrize("is_pickled", [False, True])
def test_layers_of_bge_m3_make_vectors_and_weights(is_pickled: bool, tmp_path: Path) -> None:
    model = make_encoder(tmp_path, "XLMRoberta")
    write_modules(tmp_path, "cls_token", "Normalize")
    vectors, weights = random_layer(20), random_layer(1)
    save_pickled(vectors, tmp_path / "colbert_linear.pt")
    save_pickled(weights, tmp_path / "sparse_linear.pt")
    if is_pickled:
        torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
        (tmp_path / "model.safetensors").unlink()
    texts = [*texts_of(LENGTHS), "w7 w8 w7 w9 w7 [MASK]"]
    with lmdeploy.pipeline(str(tmp_path)) as pipe:
        for text, dense, found, sparse in zip(
            texts, pipe.embed(texts), pipe.embed_tokens(texts), pipe.embed_sparse(texts), strict=True
        ):
            ids, states = states_of(pipe, model, text)
            assert_near(dense, normalize(states[0], dim=0))
            assert_near(found, normalize(linear(states[1:], *vectors)))
            expected: dict[int, float] = {}
            for token, weight in zip(ids, torch.relu(linear(states, *weights))[:, 0].tolist(), strict=True):
                if weight > 0 and token not in {0, 1, 2}:  # [PAD], [UNK], [CLS]; the tokenizer names no eos_token
                    expected[token] = max(weight, expected.get(token, 0.0))
            assert list(sparse) == sorted(expected)
            assert list(sparse.values()) == pytest.approx([expected[token] for token in sparse], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("has_modules", [False, True])
def test_layers_of_colbert_make_vectors(has_modules: bool, tmp_path: Path) -> None:
    model = make_encoder(tmp_path, "Bert")
    weight, _ = random_layer(16)
    if has_modules:  # as PyLate saves it
        steps = [("", "sentence_transformers.models.Transformer"), ("1_Dense", "pylate.models.Dense.Dense")]
        listed = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(steps)]
        (tmp_path / "modules.json").write_text(json.dumps(listed))
        (tmp_path / "1_Dense").mkdir()
        config = {"bias": False, "activation_function": "torch.nn.modules.linear.Identity"}
        (tmp_path / "1_Dense" / "config.json").write_text(json.dumps(config))
        save_file({"linear.weight": weight}, tmp_path / "1_Dense" / "model.safetensors")
        prefixes = {"query_prefix": "w1 ", "document_prefix": "w2 "}
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prefixes))
    else:
        stored = load_file(tmp_path / "model.safetensors")
        stored = {f"bert.{name}": tensor for name, tensor in stored.items()} | {"linear.weight": weight}
        save_file(stored, tmp_path / "model.safetensors")
        config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
        (tmp_path / "config.json").write_text(json.dumps(config))
    with lmdeploy.pipeline(str(tmp_path)) as pipe:
        for text in texts_of((5, 60)):
            _, states = states_of(pipe, model, text)
            assert_near(pipe.embed_tokens(text), normalize(linear(states, weight)))
            if has_modules:
                _, states = states_of(pipe, model, f"w2 {text}")
                assert_near(pipe.embed_tokens(text, prompt_name="document"), normalize(linear(states, weight)))
        if has_modules:
            with pytest.raises(ValueError, match=r"the model makes no embeddings: modules\.json has no pooling"):
                pipe.embed("w1")


MASKED = ("Bert", "Roberta", "DistilBert", "MPNet", "ModernBert", "NomicBert", "JinaEmbeddingsV3")


@pytest.mark.parametrize("family", MASKED)
def test_layers_that_predict_masked_tokens_weigh_the_vocabulary(family: str, tmp_path: Path) -> None:
    model = make_encoder(tmp_path, family, "ForMaskedLM")
    texts = texts_of((1, 90, 17))
    with lmdeploy.pipeline(str(tmp_path)) as pipe:
        found = pipe.embed_sparse(texts)
        for text, sparse in zip(texts, found, strict=True):
            _, logits = states_of(pipe, model, text)
            assert_weights(sparse, torch.log1p(torch.relu(logits)).amax(dim=0))
        assert [pipe.embed_sparse(text) for text in texts] == found


@pytest.mark.parametrize(("pools", "activation"), [("sum", "relu"), ("max", "log1p_relu"), ("mean", "relu")])
def test_splade_pools_as_its_step_says(pools: str, activation: str, tmp_path: Path) -> None:
    model = make_encoder(tmp_path, "Bert", "ForMaskedLM")
    kinds = ("MLMTransformer", "SpladePooling")
    listed = [{"idx": i, "path": f"{i}_{kind}" if i else "", "type": f"s.{kind}"} for i, kind in enumerate(kinds)]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "1_SpladePooling").mkdir()
    config = {"pooling_strategy": pools, "activation_function": activation, "word_embedding_dimension": None}
    (tmp_path / "1_SpladePooling" / "config.json").write_text(json.dumps(config))
    with lmdeploy.pipeline(str(tmp_path)) as pipe:
        if pools == "mean":
            with pytest.raises(ValueError, match="SpladePooling with pooling_strategy mean and"):
                pipe.embed_sparse("w1")
            return
        for text in texts_of((5, 90)):
            _, logits = states_of(pipe, model, text)
            weights = torch.log1p(torch.relu(logits))
            if activation == "log1p_relu":
                weights = torch.log1p(weights)
            assert_weights(pipe.embed_sparse(text), weights.sum(dim=0) if pools == "sum" else weights.amax(dim=0))


@pytest.mark.parametrize(("kind", "field"), [("Dense", "use_residual"), ("SpladePooling", "scale")])
def test_a_field_of_a_step_that_is_set_and_not_used_is_refused_by_name(kind: str, field: str, tmp_path: Path) -> None:
    make_encoder(tmp_path, "Bert", "ForMaskedLM")
    listed = [{"path": "", "type": "s.Transformer"}, {"path": "1", "type": f"s.{kind}"}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "config.json").write_text(json.dumps({"activation_function": "relu", field: True}))
    found = token_heads_of(tmp_path, Tokenizer(str(tmp_path)), 48)
    assert f"1/config.json: {field} is true, which is not supported" in found.refusal


def assert_weights(found: dict[int, float], expected: torch.Tensor) -> None:
    """Compare a sparse vector with the weights of the whole vocabulary."""
    assert list(found) == sorted(found)
    assert min(found.values()) > 0
    dense = np.zeros(len(expected), np.float32)
    dense[list(found)] = list(found.values())
    assert_near(dense, expected)


def test_what_cannot_be_had_is_named(tmp_path: Path) -> None:
    make_encoder(tmp_path, "Bert", max_position_embeddings=64)
    (long,) = texts_of((80,))
    with lmdeploy.pipeline(str(tmp_path)) as pipe:
        with pytest.raises(
            ValueError, match=r"makes no sparse vectors: its checkpoint has no sparse_linear\.pt, and no"
        ):
            pipe.embed_sparse("w1")
        with pytest.raises(ValueError, match="text 1: a text must have at most the 64 tokens that the model reads"):
            pipe.embed_tokens(["w1", long])
        assert pipe.embed_tokens(long, truncate=True).shape == (64, 48)
    save_pickled(random_layer(3, 40), tmp_path / "colbert_linear.pt")
    with (
        lmdeploy.pipeline(str(tmp_path)) as pipe,
        pytest.raises(ValueError, match=r"layers for tokens cannot be read \(a linear layer must have 48 inputs"),
    ):
        pipe.embed_tokens("w1")


def test_a_decoder_makes_none(tmp_path: Path) -> None:
    with lmdeploy.pipeline(str(make_tiny(tmp_path / "model", "LlamaForCausalLM"))) as pipe:
        with pytest.raises(ValueError, match="the model makes no vectors of tokens: it is no encoder"):
            pipe.embed_tokens("a")
        with pytest.raises(ValueError, match="output_token_embeddings needs a model that is an encoder"):
            rows_of(pipe.engine, [([5, 6], None)], of_tokens=True)
