"""Encoders of every family against ``transformers``, their pooling in numpy, and the same bits however texts come."""

from __future__ import annotations

import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import lmdeploy
from lmdeploy.errors import UnsupportedModelError
from lmdeploy.offline.texts import states_of
from lmdeploy.turbomind.checkpoint import describe
from lmdeploy.turbomind.families import families
from tests.support.tiny_encoders import (
    ENCODERS,
    hidden_states,
    make_encoder,
    make_nomic_experts,
    texts_of,
    write_modules,
)
from tests.support.tiny_models import make_tiny

LENGTHS = (1, 40, 3, 90, 17, 64, 62)
NEAR = 1e-4


def ids_of(pipe: Any, text: str) -> list[int]:
    found: list[int] = pipe.tokenizer.hf_tokenizer(text)["input_ids"]
    return found


def assert_near(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    assert np.abs(found - expected).max() <= NEAR * np.abs(expected).max()


WITHOUT_HEAD = ("Camembert", "EuroBert", "Gemma3Text")


MAKERS = {name: partial(make_encoder, family=name) for name in ENCODERS} | {"NomicBert's experts": make_nomic_experts}


@pytest.mark.parametrize("name", MAKERS)
def test_vectors_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = MAKERS[name](tmp_path)
    texts = texts_of(LENGTHS)
    with lmdeploy.pipeline(str(tmp_path)) as pipe:
        vectors = pipe.embed(texts)
        for text, vector in zip(texts, vectors, strict=True):
            assert_near(vector, hidden_states(model, ids_of(pipe, text)).mean(axis=0))
        alone = np.stack([pipe.embed(text) for text in texts])
        assert (alone == vectors).all()
        assert (pipe.embed(texts[::-1])[::-1] == vectors).all()


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3Model", "MistralModel"])
def test_decoders_that_are_not_causal_see_the_whole_text(architecture: str, tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "model", architecture, dtype="float32", is_causal=False, sliding_window=None)
    write_modules(directory, "mean_tokens", "Normalize")
    model = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    texts = ["What is the capital of China?", "Gravity", "w1 w2 " * 40]
    with lmdeploy.pipeline(str(directory)) as pipe:
        found = pipe.embed(texts)
        for text, vector in zip(texts, found, strict=True):
            ids = pipe.tokenizer.frame().single(pipe.tokenizer.encode_bare([text])[0])
            whole = hidden_states(model, ids).mean(axis=0)
            assert_near(vector, whole / np.linalg.norm(whole))
            model.config.is_causal = True
            assert np.abs(hidden_states(model, ids).mean(axis=0) - whole).max() > 1e-2
            model.config.is_causal = False
            assert (pipe.embed(text) == vector).all()


@pytest.mark.parametrize("family", [family for family in ENCODERS if family not in WITHOUT_HEAD])
def test_scores_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = make_encoder(tmp_path, family, "ForSequenceClassification")
    texts = texts_of(LENGTHS)
    pairs = list(itertools.pairwise(texts))
    with lmdeploy.pipeline(str(tmp_path)) as pipe:
        scores = pipe.score(pairs)
        for (query, text), score in zip(pairs, scores, strict=True):
            whole = pipe.tokenizer.hf_tokenizer(query, text, return_token_type_ids=True)
            types = whole["token_type_ids"] if any(whole["token_type_ids"]) else None
            (logit,) = hidden_states(model, whole["input_ids"], types)
            assert abs(score - 1 / (1 + np.exp(-logit))) <= NEAR
        assert (np.stack([pipe.score([pair])[0] for pair in pairs]) == scores).all()


@pytest.mark.parametrize(
    ("mode", "pooled"),
    [
        ("cls_token", lambda states: states[0]),
        ("lasttoken", lambda states: states[-1]),
        ("max_tokens", lambda states: states.max(axis=0)),
        ("mean_sqrt_len_tokens", lambda states: states.sum(axis=0) / np.sqrt(len(states))),
        ("weightedmean_tokens", lambda states: np.average(states, axis=0, weights=range(1, len(states) + 1))),
    ],
)
def test_pooling_is_the_one_that_the_checkpoint_says(mode: str, pooled: Any, tmp_path: Path) -> None:
    model = make_encoder(tmp_path, "Bert")
    write_modules(tmp_path, mode, "Normalize")
    texts = texts_of((5, 70))
    with lmdeploy.pipeline(str(tmp_path)) as pipe:
        for text, vector in zip(texts, pipe.embed(texts), strict=True):
            expected = pooled(hidden_states(model, ids_of(pipe, text)))
            assert_near(vector, expected / np.linalg.norm(expected))


@pytest.mark.parametrize("is_pickled", [False, True])
def test_dense_layers_prompts_and_dimensions_follow(is_pickled: bool, tmp_path: Path) -> None:
    model = make_encoder(tmp_path, "Bert")
    write_modules(tmp_path, "mean_tokens", "Dense", "Normalize")
    dense = torch.nn.Linear(48, 20)
    (tmp_path / "2_Dense").mkdir()
    tensors = {f"linear.{name}": value.detach() for name, value in dense.named_parameters()}
    if is_pickled:
        torch.save(tensors, tmp_path / "2_Dense" / "pytorch_model.bin")
    else:
        save_file(tensors, tmp_path / "2_Dense" / "model.safetensors")
    config = {
        "in_features": 48,
        "out_features": 20,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    (tmp_path / "2_Dense" / "config.json").write_text(json.dumps(config))
    prompts = {"prompts": {"query": "w1 w2 ", "document": "w3 "}, "default_prompt_name": "document"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    text = texts_of((9,))[0]
    with lmdeploy.pipeline(str(tmp_path)) as pipe:

        def expected(prompt: str, dimensions: int = 20) -> np.ndarray[Any, Any]:
            mean = hidden_states(model, ids_of(pipe, prompt + text)).mean(axis=0)
            with torch.no_grad():
                made = torch.tanh(dense(torch.tensor(mean, dtype=torch.float32)))[:dimensions].numpy()
            return np.asarray(made / np.linalg.norm(made))

        assert_near(pipe.embed(text), expected("w3 "))
        assert_near(pipe.embed(text, prompt_name="query"), expected("w1 w2 "))
        assert_near(pipe.embed(text, dimensions=6), expected("w3 ", 6))
        with pytest.raises(
            ValueError, match=r"prompt_name must be one that the model has \(query, document\), got 'task'"
        ):
            pipe.embed(text, prompt_name="task")
        with pytest.raises(ValueError, match="dimensions must be at most 20 with this model, got 21"):
            pipe.embed(text, dimensions=21)


def pooled(mode: str, states: np.ndarray[Any, Any], skipped: int) -> Any:
    """Return sentence-transformers' ``Pooling`` of a text whose first tokens are masked."""
    mask = np.arange(len(states)) >= skipped
    if mode == "max_tokens":
        return np.where(mask[:, None], states, -1e9).max(axis=0)
    weights = mask * (np.arange(len(states)) + 1 if mode == "weightedmean_tokens" else 1)
    return weights @ states / (np.sqrt(weights.sum()) if mode == "mean_sqrt_len_tokens" else weights.sum())


@pytest.mark.parametrize(
    "mode", ["mean_tokens", "max_tokens", "weightedmean_tokens", "mean_sqrt_len_tokens", "cls_token"]
)
def test_steps_and_settings_are_those_of_sentence_transformers(mode: str, tmp_path: Path) -> None:
    model = make_encoder(tmp_path, "Bert")
    write_modules(tmp_path, mode, "Normalize", "Dense")
    torch.manual_seed(3)
    dense = torch.nn.Linear(48, 20)
    (tmp_path / "3_Dense").mkdir()
    save_file(
        {f"linear.{name}": value.detach() for name, value in dense.named_parameters()},
        tmp_path / "3_Dense" / "model.safetensors",
    )
    config: dict[str, dict[str, Any]] = {
        "3_Dense/config.json": {"in_features": 48, "out_features": 20, "activation_function": "torch.nn.Tanh"},
        "1_Pooling/config.json": {f"pooling_mode_{mode}": True, "include_prompt": False},
        "config_sentence_transformers.json": {"prompts": {"query": "W1 w2 "}, "truncate_dim": 12},
        "sentence_xlm-roberta_config.json": {"max_seq_length": 9, "do_lower_case": True},
    }
    for name, content in config.items():
        (tmp_path / name).write_text(json.dumps(content))
    with lmdeploy.pipeline(str(tmp_path)) as pipe:
        for prompt, name in (("", None), ("w1 w2 ", "query")):
            states = hidden_states(model, ids_of(pipe, f"{prompt}w7 w8 w9"))
            middle = (
                states[0] if mode == "cls_token" else pooled(mode, states, 1 + len(prompt.split()) if prompt else 0)
            )
            with torch.no_grad():
                expected = torch.tanh(dense(torch.tensor(middle / np.linalg.norm(middle)).float())).numpy()
            assert_near(pipe.embed("W7 w8 W9", prompt_name=name), expected[:12])
            assert_near(pipe.embed("W7 w8 W9", prompt_name=name, dimensions=20), expected / np.linalg.norm(expected))
        assert (pipe.embed("w7 " * 20, truncate=True) == pipe.embed("w7 " * 7)).all()
        with pytest.raises(ValueError, match="at most the 9 tokens"):
            pipe.embed("w7 " * 8)


@pytest.mark.parametrize(
    ("files", "max_len"),
    [
        ({}, 512),
        ({"tokenizer_config.json": {"model_max_length": 11}}, 11),
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, 512),
        ({"sentence_roberta_config.json": {"max_seq_length": 7}, "tokenizer_config.json": {"model_max_length": 11}}, 7),
        (
            {"sentence_bert_config.json": {"max_seq_length": None}, "tokenizer_config.json": {"model_max_length": 11}},
            11,
        ),
        (
            {"sentence_bert_config.json": {"max_seq_length": 9}, "sentence_roberta_config.json": {"max_seq_length": 7}},
            9,
        ),
        ({"sentence_distilbert_config.json": {"max_seq_length": 4096}}, 512),
    ],
)
def test_the_longest_text_is_read_where_publishers_write_it(
    files: dict[str, Any], max_len: int, tmp_path: Path
) -> None:
    make_encoder(tmp_path, "Bert", num_hidden_layers=1)
    for name, content in files.items():
        before = json.loads((tmp_path / name).read_text()) if (tmp_path / name).is_file() else {}
        (tmp_path / name).write_text(json.dumps(before | content))
    assert describe(tmp_path, "model").spec.max_position_embeddings == max_len


def test_texts_and_tokens_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    make_encoder(tmp_path, "Bert", max_position_embeddings=64)
    (long,) = texts_of((80,))
    words = long.split()
    with lmdeploy.pipeline(str(tmp_path)) as pipe:
        with pytest.raises(
            ValueError, match="text 1: a text must have at most the 64 tokens that the model reads, got 82"
        ):
            pipe.embed(["w1", long])
        kept = pipe.embed(long, truncate=True)
        assert (kept == pipe.embed(" ".join(words[:62]))).all()
        assert pipe.embed([]).shape == (0, 0)
        assert pipe.embed("").shape == (48,)
        for ids, why in (([2, 160, 3], "vocabulary"), ([], "at least one token")):
            with pytest.raises(ValueError, match=why):
                states_of(pipe.engine, [(ids, None)])
        with pytest.raises(ValueError, match="second_text_begin must be less than the 3 tokens"):
            states_of(pipe.engine, [([2, 9, 3], 3)])
        with pytest.raises(ValueError, match="this model is an encoder: it makes vectors of texts"):
            pipe("w1", do_preprocess=False)
        with pytest.raises(ValueError, match=r"vectors of texts|vector alone"):
            pipe.get_ppl([[2, 9, 3]])
        assert (pipe.embed(long, truncate=True) == kept).all()


@pytest.mark.parametrize(("settings", "near"), [({"dtype": "bfloat16"}, 0.995), ({"weight_bits": 8}, 0.999)])
def test_fewer_bits_change_vectors_little(settings: dict[str, Any], near: float, tmp_path: Path) -> None:
    model = make_encoder(tmp_path, "Bert", hidden_size=64, intermediate_size=128)
    texts = texts_of(LENGTHS)
    config = lmdeploy.TurbomindEngineConfig(**settings)
    with lmdeploy.pipeline(str(tmp_path), backend_config=config) as pipe:
        vectors = pipe.embed(texts)
        for text, vector in zip(texts, vectors, strict=True):
            expected = hidden_states(model, ids_of(pipe, text)).mean(axis=0)
            assert vector @ expected >= near * np.linalg.norm(vector) * np.linalg.norm(expected)
        assert (np.stack([pipe.embed(text) for text in texts]) == vectors).all()


@pytest.mark.parametrize("name", ["NomicBert's experts", "Bert", "DebertaV2"])
def test_ranks_share_an_encoder(name: str, tmp_path: Path) -> None:
    model = MAKERS[name](tmp_path)
    texts = texts_of(LENGTHS)
    with lmdeploy.pipeline(str(tmp_path), backend_config=lmdeploy.TurbomindEngineConfig(tp=2)) as pipe:
        for text, vector in zip(texts, pipe.embed(texts), strict=True):
            assert_near(vector, hidden_states(model, ids_of(pipe, text)).mean(axis=0))


def test_older_names_of_norms_are_read(tmp_path: Path) -> None:
    model = make_encoder(tmp_path, "Bert")
    file = tmp_path / "model.safetensors"
    older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    stored = load_file(file)
    for new, old in older.items():
        stored = {
            "bert." * (not name.startswith("bert.")) + name.replace(new, old): value for name, value in stored.items()
        }
    save_file(stored, file)
    (text,) = texts_of((12,))
    with lmdeploy.pipeline(str(tmp_path)) as pipe:
        assert_near(pipe.embed(text), hidden_states(model, ids_of(pipe, text)).mean(axis=0))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"is_decoder": True}, "is_decoder"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"conv_kernel_size": 3}, "DeBERTa with conv_kernel_size 3"),
        ({"pos_att_type": ["c2p"]}, r"DeBERTa with pos_att_type \['c2p'\]"),
        ({"share_att_key": False}, "DeBERTa with share_att_key False"),
    ],
)
def test_what_encoders_lack_is_named(changes: dict[str, Any], why: str, tmp_path: Path) -> None:
    make_encoder(tmp_path, "DebertaV2" if "DeBERTa" in why else "Bert")
    config = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=f"{why}.* is not supported"):
        lmdeploy.pipeline(str(tmp_path), backend_config=lmdeploy.TurbomindEngineConfig())


def test_every_encoder_is_shown() -> None:
    known = {name.removesuffix("ForMaskedLM") for name in families() if name.endswith("ForMaskedLM")}
    assert known | {"Gemma3Text"} == {*ENCODERS, "New"}  # New: GTE's name in code of its own
