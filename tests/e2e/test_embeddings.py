"""Embeddings, scores and ranks through gateway, Triton and engine, and the guide about retrieval."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3ForCausalLM

import lmdeploy
from lmdeploy.tokenizer import Tokenizer
from lmdeploy.turbomind.engine_dir import resolve
from openai_gateway.settings import Settings
from tests.docs.blocks import ROOT, blocks
from tests.gateway.test_embeddings import write_modules
from tests.support.commands import api_server
from tests.support.gateways import openai_client, running_gateway
from tests.support.servers import running_triton
from tests.support.tiny_encoders import make_encoder, texts_of
from tests.support.tiny_models import make_tiny
from tools.default_embedder import make

TEXTS = [
    "What is the capital of China?",
    "The capital of China is Beijing, and it has been so for most of the last seven hundred years.",
    "Gravity",
]


def make_body(directory: Path) -> Path:
    """Make a checkpoint as Qwen3-Embedding is published: without an output layer, and no ``model.`` before names."""
    make_tiny(directory, "Qwen3ForCausalLM", head_dim=8, tie_word_embeddings=False)
    file = directory / "model.safetensors"
    tensors = {name.removeprefix("model."): data for name, data in load_file(file).items() if name != "lm_head.weight"}
    save_file(tensors, file, {"format": "pt"})
    config = (directory / "config.json").read_text()
    write_modules(directory)
    (directory / "config.json").write_text(config)
    return directory


def test_vectors_are_those_of_transformers(tmp_path: Path) -> None:
    whole = make_tiny(tmp_path / "whole", "Qwen3ForCausalLM", head_dim=8, tie_word_embeddings=False)
    body = make_body(tmp_path / "body")
    model, tokenizer = Qwen3ForCausalLM.from_pretrained(whole, dtype=torch.float32).model, Tokenizer(str(whole))
    with torch.no_grad():
        states = [model(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0, -1] for text in TEXTS]
    expected = np.stack([(state / state.norm()).numpy() for state in states])
    with (
        running_triton(body, dtype="float32", cache_max_entry_count=64, enable_prefix_caching=True) as triton,
        running_gateway(
            Settings(triton_address=triton.grpc_address, model_name="body", engine_dir=resolve(body).path)
        ) as url,
        openai_client(url) as client,
    ):
        responses = [client.embeddings.create(model="body", input=TEXTS) for _ in range(2)]
        vectors = [[entry.embedding for entry in response.data] for response in responses]
        np.testing.assert_allclose(vectors[0], expected, atol=1e-4)
        assert vectors[0] == vectors[1]  # of the second most is found in the cache
        tokens = [tokenizer.encode(text) for text in TEXTS]
        assert responses[0].usage.prompt_tokens == sum(map(len, tokens))
        of_tokens = client.embeddings.create(model="body", input=tokens)
        assert [entry.embedding for entry in of_tokens.data] == vectors[0]


GUIDE = ROOT / "docs" / "guides" / "retrieval.md"
NOTES = {
    "library.txt": "The library opens at nine. On Fridays it closes at three.\n\nBooks are lent for a month.",
    "garden.txt": "Tomatoes need sun and water.\n\nThe shed's key hangs behind the door.",
    "food.txt": "Bread is baked on Mondays.\n\nSoup is served at noon.",
}


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "reranker"
    make_encoder(directory, "Bert", "ForSequenceClassification")
    return directory


@pytest.fixture(scope="module")
def server(default_model_dir: Path, reranker: Path) -> Iterator[str]:
    models = [("chat", default_model_dir), ("embedder", make()), ("reranker", reranker)]
    file = reranker.parent / "models.json"
    file.write_text(json.dumps({"models": [{"name": name, "path": str(path)} for name, path in models]}))
    with api_server("--models-file", str(file)) as running:
        running.wait_ready()
        yield running.url


def test_the_guide_finds_what_answers(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").mkdir()
    for name, text in NOTES.items():
        (tmp_path / "notes" / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(GUIDE, "python")
    space: dict[str, Any] = {}
    exec(code.replace("http://localhost:23333", server), space)
    nearest = space["paragraphs"][int(np.argmax(space["vectors"] @ space["embed"]([space["question"]], "query")[0]))]
    assert nearest == NOTES["library.txt"].split("\n\n")[0]
    assert sorted(space["retrieve"](space["question"], near=3, best=3)) == sorted(
        space["retrieve"](space["question"], near=3)
    )
    assert len(space["found"]) == 3
    assert space["answer"].choices[0].message.content


def test_a_served_vector_is_the_offline_one(server: str) -> None:
    texts = ["a text", "a longer text about bread and soup"]
    with lmdeploy.pipeline(str(make())) as pipe:
        expected = pipe.embed(texts)
    body = {"model": "embedder", "input": texts}
    found = httpx.post(f"{server}/v1/embeddings", json=body).json()["data"]
    assert (np.array([entry["embedding"] for entry in found], np.float32) == expected).all()
    tei = httpx.post(f"{server}/embed", json={"inputs": texts}).json()
    assert np.allclose(np.array(tei), expected, rtol=0, atol=1e-6)
    long = httpx.post(f"{server}/v1/embeddings", json={"model": "embedder", "input": "word " * 300})
    assert long.status_code == 400
    assert "256 tokens" in long.json()["error"]["message"]
    many = httpx.post(f"{server}/v1/embeddings", json={"model": "embedder", "input": ["a"] * 10_000})
    assert many.status_code == 400
    chat = {"model": "embedder", "messages": [{"role": "user", "content": "a"}]}
    wrong = httpx.post(f"{server}/v1/chat/completions", json=chat)
    assert (wrong.status_code, "encoder" in wrong.json()["error"]["message"]) == (400, True)


def test_pairs_have_the_offline_scores_in_every_form(server: str, reranker: Path) -> None:
    query, *texts = texts_of((4, 9, 30, 2))
    with lmdeploy.pipeline(str(reranker)) as pipe:
        expected = pipe.score([(query, text) for text in texts])
    body: dict[str, Any] = {"model": "reranker", "query": query, "documents": texts, "max_tokens_per_doc": 4096}
    cohere = httpx.post(f"{server}/v2/rerank", json=body).json()
    found = {result["index"]: result["relevance_score"] for result in cohere["results"]}
    assert np.allclose([found[i] for i in range(3)], expected, rtol=0, atol=1e-7)
    tei = {"model": "reranker", "query": query, "texts": texts, "return_text": True}
    ranked = httpx.post(f"{server}/rerank", json=tei).json()
    assert [entry["text"] for entry in ranked] == [texts[i] for i in np.argsort(-expected, kind="stable")]
    assert np.allclose([entry["score"] for entry in ranked], np.sort(expected)[::-1], rtol=0, atol=1e-7)
    predicted = httpx.post(f"{server}/predict", json={"inputs": [[query, text] for text in texts]}).json()
    assert np.allclose([entry[0]["score"] for entry in predicted], expected, rtol=0, atol=1e-7)
    scored = {"model": "reranker", "text_1": query, "text_2": texts}
    scores = httpx.post(f"{server}/v1/score", json=scored).json()["data"]
    assert np.allclose([entry["score"] for entry in scores], expected, rtol=0, atol=1e-7)
