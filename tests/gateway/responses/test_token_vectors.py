"""Vectors and weights of tokens over the fake engine: ``/v1/pooling``, and TEI's ``/embed_all``, ``/embed_sparse``."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
import torch

from lmdeploy.model_metadata.pooling import write_pooling
from lmdeploy.model_metadata.token_heads import TokenHeads, token_heads_of, write_token_heads
from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.gateway.test_embeddings import write_modules
from tests.support.fake_triton import FakeTriton, embedding_of, token_ids
from tests.support.gateways import running_gateway

TEXTS = ["one", "another text"]
VECTORS = np.array([[1, 2, 3, 4], [0, -1, 0, 1], [2, 0, 0, 0]], np.float32)
WEIGHTS = np.array([[1, -1, 2, 0]], np.float32)


class Roles:
    """Of a tokenizer, which tokens have a role."""

    special_tokens: ClassVar = {"cls_token": "<s>", "bos_token": "<s>"}

    def ids_of(self, texts: list[str]) -> list[int | None]:
        return [1 for _ in texts]


def write_heads(directory: Path, hidden_size: int = 4) -> Path:
    write_modules(directory)
    write_pooling(directory, directory)
    for name, weight in (("colbert", VECTORS), ("sparse", WEIGHTS)):
        layer = {"weight": torch.from_numpy(weight), "bias": torch.zeros(len(weight))}
        torch.save(layer, directory / f"{name}_linear.pt")
    write_token_heads(directory, directory, Roles(), hidden_size)  # type: ignore[arg-type]
    return directory


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    fake = FakeTriton(MODEL)
    directory = write_heads(tmp_path_factory.mktemp("model"))
    with running_gateway(Settings(triton_address=fake.address, engine_dir=directory)) as url:
        yield url
    fake.stop()


def post(url: str, path: str, **body: Any) -> Any:
    return httpx.post(f"{url}{path}", json=body).raise_for_status().json()


def states(text: str) -> np.ndarray:
    """Return the fake engine's vector of each token: which of four kinds it is."""
    return np.eye(4)[[token % 4 for token in token_ids(text)]]


def vectors(text: str) -> np.ndarray:
    made = states(text)[1:] @ VECTORS.T
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def weights(text: str) -> np.ndarray:
    return np.maximum(states(text) @ WEIGHTS[0], 0)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_pooling_returns_vectors_of_tokens(embedder: str, encoding: str) -> None:
    body = {"model": MODEL, "input": TEXTS, "task": "token_embed", "encoding_format": encoding}
    response = post(embedder, "/v1/pooling", **body)
    for text, entry in zip(TEXTS, response["data"], strict=True):
        found = entry["data"]
        if encoding == "base64":
            found = np.frombuffer(base64.b64decode(found), "<f4").reshape(-1, 3)
        np.testing.assert_allclose(found, vectors(text), rtol=1e-6)
    count = sum(len(token_ids(text)) for text in TEXTS)
    assert response["usage"] == {"prompt_tokens": count, "total_tokens": count}


def test_pooling_returns_weights_of_tokens(embedder: str) -> None:
    ids = [token_ids(text) for text in TEXTS]  # tokens in place of texts
    response = post(embedder, "/v1/pooling", input=ids, task="token_classify")
    for text, entry in zip(TEXTS, response["data"], strict=True):
        np.testing.assert_allclose(entry["data"], weights(text)[:, None], rtol=1e-6)


def test_the_task_embed_is_what_the_model_is_made_for(embedder: str) -> None:
    unframed = post(embedder, "/v1/pooling", input=TEXTS)["data"]
    assert post(embedder, "/v1/pooling", input=TEXTS, task="embed")["data"] == unframed


def test_tei_clients_get_vectors_of_tokens(embedder: str) -> None:
    for text, found in zip(TEXTS, post(embedder, "/embed_all", inputs=TEXTS), strict=True):
        np.testing.assert_allclose(found, vectors(text), rtol=1e-6)


def test_tei_clients_get_sparse_vectors(embedder: str) -> None:
    for text, found in zip(TEXTS, post(embedder, "/embed_sparse", inputs=TEXTS), strict=True):
        expected = dict(zip(token_ids(text), weights(text), strict=True))
        expected = {token: weight for token, weight in sorted(expected.items()) if weight > 0 and token != 1}
        assert expected
        assert [(entry["index"], entry["value"]) for entry in found] == list(expected.items())


def test_texts_of_more_numbers_than_fit_in_memory_come_in_groups(
    embedder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = post(embedder, "/embed_sparse", inputs=TEXTS * 3)
    for module in ("tokens", "vectors"):
        monkeypatch.setattr(f"openai_gateway.endpoints.embeddings.{module}.MAX_NUMBERS", 4)
    assert post(embedder, "/embed_sparse", inputs=TEXTS * 3) == whole
    response = httpx.post(f"{embedder}/embed_all", json={"inputs": TEXTS})
    assert response.status_code == 400
    assert "must have at most 1 tokens" in response.json()["error"]["message"]


def test_sparse_vectors_of_more_weights_than_a_response_may_have_are_refused(
    embedder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = sum(len(vector) for vector in post(embedder, "/embed_sparse", inputs=TEXTS))
    path = "openai_gateway.endpoints.embeddings.tokens._MAX_WEIGHTS"
    monkeypatch.setattr(path, count)
    assert len(post(embedder, "/embed_sparse", inputs=TEXTS)) == len(TEXTS)
    monkeypatch.setattr(path, count - 1)
    response = httpx.post(f"{embedder}/embed_sparse", json={"inputs": TEXTS})
    assert response.status_code == 400
    assert f"must have at most {count - 1} weights" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        ("/v1/pooling", {"input": "one", "task": "token_embed"}, "makes no vectors of tokens: it is no encoder"),
        ("/embed_sparse", {"inputs": "one"}, "makes no vectors of tokens: it is no encoder"),
        ("/embed_all", {"inputs": "one", "truncate": True, "truncation_direction": "Left"}, "left is not supported"),
        ("/v1/pooling", {"input": "one", "task": "plugin"}, "task"),
    ],
)
def test_what_cannot_be_had_is_a_400(url: str, path: str, body: dict[str, Any], why: str) -> None:
    response = httpx.post(f"{url}{path}", json=body)
    assert response.status_code == 400
    assert why in response.json()["error"]["message"]


def test_layers_of_another_width_are_refused_by_name(tmp_path: Path) -> None:
    directory = write_heads(tmp_path, hidden_size=5)
    heads = token_heads_of(directory, Roles(), 5)  # type: ignore[arg-type]
    assert heads == TokenHeads(5, refusal=heads.refusal)
    assert "a linear layer must have 5 inputs, got (3, 4)" in heads.refusal


def test_prompts_are_left_out_and_texts_lower_cased_where_the_checkpoint_says_it(tmp_path: Path) -> None:
    write_heads(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean", "include_prompt": false}')
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    (tmp_path / "config_sentence_transformers.json").write_text('{"prompts": {"query": "Find "}, "truncate_dim": 3}')
    write_pooling(tmp_path, tmp_path, is_encoder=True)
    fake = FakeTriton(MODEL)
    with running_gateway(Settings(triton_address=fake.address, engine_dir=tmp_path)) as url:
        for name, kept in (("query", states("find one")[len(token_ids("find ")) :]), (None, None)):
            body = {"inputs": "One", "prompt_name": name, "normalize": False}
            (vector,) = post(url, "/embed", **body)
            whole = kept.mean(axis=0) if kept is not None else np.frombuffer(embedding_of(token_ids("one")), "<f4")
            np.testing.assert_allclose(vector, whole[:3], rtol=1e-6)
    fake.stop()
