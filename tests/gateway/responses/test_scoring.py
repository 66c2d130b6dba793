"""Classes, scores, and vectors and weights of tokens over the fake engine."""

import base64
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from lmdeploy.model_metadata.pooling import write_pooling
from lmdeploy.model_metadata.score_head import ScoreHead, read_score_head, write_score_head
from lmdeploy.model_metadata.token_heads import TokenHeads, token_heads_of, write_token_heads
from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.gateway.test_embeddings import write_modules
from tests.support.fake_triton import FakeTriton, embedding_of, token_ids
from tests.support.gateways import running_gateway

WEIGHT = np.array([[0.1, -0.2, 0.3, 0.05], [-0.1, 0.1, 0.0, 0.2], [0.02, 0.03, -0.3, 0.1]], np.float32)
BIAS = np.array([0.5, 0.0, -0.25], np.float32)
PREFIX = '<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'  # noqa: E501
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TASK = "Given a web search query, retrieve relevant passages that answer the query"


def write_checkpoint(directory: Path, tensors: dict[str, Any], **config: Any) -> Path:
    """Write what the head of a checkpoint is read from, and what is kept of it, into one directory."""
    directory.mkdir(exist_ok=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def write_classifier(directory: Path, labels: int, **config: Any) -> Path:
    tensors = {"score.weight": WEIGHT[:labels].copy(), "score.bias": BIAS[:labels].copy()}
    names = {"id2label": {str(number): f"class {number}" for number in range(labels)}}
    return write_checkpoint(directory, tensors, architectures=["Qwen2ForSequenceClassification"], **names | config)


def write_judge(directory: Path) -> Path:
    """Write a reranker that says a word, as sentence-transformers describes it."""
    rows = np.zeros((8, 4), np.float32)
    rows[5], rows[2] = WEIGHT[0], WEIGHT[1]
    write_checkpoint(directory, {"lm_head.weight": rows}, architectures=["Qwen3ForCausalLM"])
    steps = [{"type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore", "path": "1_LogitScore"}]
    (directory / "modules.json").write_text(json.dumps(steps))
    (directory / "1_LogitScore").mkdir()
    (directory / "1_LogitScore" / "config.json").write_text('{"true_token_id": 5, "false_token_id": 2}')
    return directory


@contextmanager
def served(directory: Path, name: str = "model") -> Iterator[httpx.Client]:
    write_score_head(directory, name, None, directory)  # type: ignore[arg-type] # no words to look up
    with (
        FakeTriton(MODEL) as fake,
        running_gateway(Settings(triton_address=fake.address, engine_dir=directory)) as url,
        httpx.Client(base_url=url, trust_env=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with served(write_classifier(tmp_path_factory.mktemp("three") / "model", 3)) as client:
        yield client


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with served(write_classifier(tmp_path_factory.mktemp("one") / "model", 1)) as client:
        yield client


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with served(write_judge(tmp_path_factory.mktemp("judge") / "model"), "Qwen3-Reranker-0.6B") as client:
        yield client


def state(ids: list[int]) -> np.ndarray:
    return np.array(struct.unpack("<4f", embedding_of(ids)))


def sigmoid(number: float) -> float:
    return float(1 / (1 + np.exp(-number)))


def test_texts_have_a_class_and_how_likely_each_is(classifier: httpx.Client) -> None:
    texts = ["one", "another text", token_ids("tokens")]
    for text in texts:
        ids = token_ids(text) if isinstance(text, str) else text
        powers = np.exp(WEIGHT @ state(ids) + BIAS)
        response = classifier.post("/v1/classify", json={"model": MODEL, "input": text}).json()
        (found,) = response["data"]
        np.testing.assert_allclose(found["probs"], powers / powers.sum(), rtol=1e-5)
        assert found["label"] == f"class {powers.argmax()}"
        assert (found["num_classes"], response["usage"]["prompt_tokens"]) == (3, 7)
    several = classifier.post("/classify", json={"input": texts[:2], "use_activation": False}).json()
    expected = [WEIGHT @ state(token_ids(text)) + BIAS for text in texts[:2]]  # type: ignore[arg-type]
    np.testing.assert_allclose([entry["probs"] for entry in several["data"]], expected, rtol=1e-5)


def test_rewards_are_the_head_s_own_numbers(scorer: httpx.Client) -> None:
    number = float(WEIGHT[0] @ state(token_ids("good")) + BIAS[0])
    for encoding in ("float", "base64"):
        (found,) = scorer.post("/v1/pooling", json={"input": "good", "encoding_format": encoding}).json()["data"]
        data = found["data"] if encoding == "float" else np.frombuffer(base64.b64decode(found["data"]), "<f4")
        np.testing.assert_allclose(data, [number], rtol=1e-5)
    (found,) = scorer.post("/classify", json={"input": "good"}).json()["data"]
    assert found["probs"] == pytest.approx([sigmoid(number)], rel=1e-5)


def test_a_conversation_is_read_without_room_for_a_response(tmp_path: Path) -> None:
    directory = write_classifier(tmp_path / "model", 1)
    write_score_head(directory, "model", None, directory)  # type: ignore[arg-type]
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    with FakeTriton(MODEL) as fake, running_gateway(Settings(triton_address=fake.address, engine_dir=directory)) as url:
        response = httpx.post(f"{url}/v1/pooling", json={"messages": messages}, trust_env=False)
        assert response.status_code == 200
        reported = json.loads(fake.requests[-1].inputs["messages"])
    assert reported["chat_template_kwargs"] == {"add_generation_prompt": False}
    assert [message["content"] for message in reported["messages"]] == ["Hello", "Hi"]


def test_a_pair_is_one_text_after_the_other(scorer: httpx.Client) -> None:
    def expected(query: str, text: str) -> float:
        return sigmoid(WEIGHT[0] @ state(token_ids(query) + token_ids(text)) + BIAS[0])

    documents = ["abcabc", "zz", "aaaaaaaaaaa"]
    scores = [expected("who", text) for text in documents]
    order = sorted(range(3), key=lambda index: -scores[index])
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        results = scorer.post(path, json={"query": "who", "documents": documents}).json()["results"]
        assert [result["index"] for result in results] == order
        assert [result["relevance_score"] for result in results] == pytest.approx(
            [scores[index] for index in order], rel=1e-5
        )
    for top_n, count in {0: len(documents), 1: 1}.items():
        body = {"query": "who", "documents": documents, "top_n": top_n}
        assert len(scorer.post("/v1/rerank", json=body).json()["results"]) == count
    for names in (("text_1", "text_2"), ("queries", "documents")):
        request = dict(zip(names, (["who", "what"], ["zz", "abc"]), strict=True))
        data = scorer.post("/v1/score", json=request).json()["data"]
        reference = [expected("who", "zz"), expected("what", "abc")]
        assert [entry["score"] for entry in data] == pytest.approx(reference, rel=1e-5)


@pytest.mark.parametrize("instruction", [None, "Is it about animals?"])
def test_qwen3_reranker_is_asked_in_its_own_words(judge: httpx.Client, instruction: str | None) -> None:
    documents = ["abcabc", "zz"]
    prompts = [f"{PREFIX}<Instruct>: {instruction or TASK}\n<Query>: who\n<Document>: {text}" for text in documents]
    states = [state(token_ids(prompt + SUFFIX)) for prompt in prompts]
    yes, no = (np.array([row @ state for state in states]) for row in WEIGHT[:2])
    more = {} if instruction is None else {"instruction": instruction}
    data = judge.post("/v1/score", json={"text_1": "who", "text_2": documents, **more}).json()["data"]
    reference = np.exp(yes) / (np.exp(yes) + np.exp(no))
    assert [entry["score"] for entry in data] == pytest.approx(reference, rel=1e-4)


def test_what_cannot_be_is_refused(
    classifier: httpx.Client, scorer: httpx.Client, judge: httpx.Client, http: httpx.Client
) -> None:
    def rejected(client: httpx.Client, path: str, **body: Any) -> str:
        response = client.post(path, json=body)
        assert response.status_code == 400, response.text
        return str(response.json()["error"]["message"])

    ranked = {"query": "a", "documents": ["b"]}
    assert "has no one score: its head separates 3 classes" in rejected(classifier, "/v1/rerank", **ranked)
    assert "compares no texts" in rejected(http, "/v1/rerank", **ranked)
    assert "compares no texts" in rejected(http, "/v1/score", text_1="a", text_2="b")
    for path in ("/v1/classify", "/v1/pooling"):
        assert "classifies nothing" in rejected(http, path, input="a")
        assert "input or messages is required" in rejected(scorer, path)
    assert "reads no instruction" in rejected(scorer, "/v1/rerank", **ranked, instruction="x")
    assert "makes no embeddings" in rejected(scorer, "/v1/embeddings", input="a")
    assert "makes no embeddings" in rejected(judge, "/v1/embeddings", input="a")
    assert "queries and documents, are required" in rejected(scorer, "/v1/score", text_1="a")
    assert "cannot be combined" in rejected(scorer, "/v1/score", queries="a", documents="b", text_1="c")
    assert "at most 41943 characters" in rejected(scorer, "/v1/rerank", query="a" * 50_000, documents=["b"] * 200)


@pytest.mark.parametrize(
    ("changes", "activation", "reason"),
    [
        ({}, "softmax", ""),
        ({"problem_type": "multi_label_classification"}, "sigmoid", ""),
        ({"problem_type": "regression"}, "identity", ""),
        ({"is_causal": False}, "softmax", "its attention is bidirectional, which is not supported"),
    ],
)
def test_heads_are_read_as_configured(tmp_path: Path, changes: dict[str, Any], activation: str, reason: str) -> None:
    directory = write_classifier(tmp_path / "model", 3, **changes)
    write_score_head(directory, "model", None, directory)  # type: ignore[arg-type]
    head = read_score_head(directory)
    assert head == ScoreHead(("class 0", "class 1", "class 2"), False, activation, reason)
    np.testing.assert_array_equal(head.weight, WEIGHT)  # type: ignore[union-attr]


def test_a_head_that_is_missing_or_speaks_unknown_words_is_refused(tmp_path: Path) -> None:
    missing = write_checkpoint(tmp_path / "a", {"x": WEIGHT}, architectures=["LlamaForSequenceClassification"])
    write_score_head(missing, "model", None, missing)  # type: ignore[arg-type]
    head = read_score_head(missing)
    assert head.refusal == "its head cannot be read (tensor score.weight is missing)"
    other = write_judge(tmp_path / "b")
    write_score_head(other, "another reranker", None, other)  # type: ignore[arg-type]
    head = read_score_head(other)
    assert head.refusal == "the words around its queries and documents are not known here"


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
    directory = write_heads(tmp_path_factory.mktemp("model"))
    with FakeTriton(MODEL) as fake, running_gateway(Settings(triton_address=fake.address, engine_dir=directory)) as url:
        yield url


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
        ("/embed_all", {"inputs": "one", "truncate": True, "truncation_direction": "Left"}, "is not supported by"),
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
    with FakeTriton(MODEL) as fake, running_gateway(Settings(triton_address=fake.address, engine_dir=tmp_path)) as url:
        for name, kept in (("query", states("find one")[len(token_ids("find ")) :]), (None, None)):
            body = {"inputs": "One", "prompt_name": name, "normalize": False}
            (vector,) = post(url, "/embed", **body)
            whole = kept.mean(axis=0) if kept is not None else np.frombuffer(embedding_of(token_ids("one")), "<f4")
            np.testing.assert_allclose(vector, whole[:3], rtol=1e-6)
