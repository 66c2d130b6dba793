"""Ranking, scores, classes and rewards with models that have a head for them, over the fake engine."""

import base64
import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from lmdeploy.model_metadata.score_head import ScoreHead, read_score_head, write_score_head
from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
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
    fake = FakeTriton(MODEL)
    with (
        running_gateway(Settings(triton_address=fake.address, engine_dir=directory)) as url,
        httpx.Client(base_url=url, trust_env=False) as client,
    ):
        yield client
    fake.stop()


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
    fake = FakeTriton(MODEL)
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    with running_gateway(Settings(triton_address=fake.address, engine_dir=directory)) as url:
        response = httpx.post(f"{url}/v1/pooling", json={"messages": messages}, trust_env=False)
        assert response.status_code == 200
        reported = json.loads(fake.requests[-1].inputs["messages"])
    fake.stop()
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
    assert head is not None
    assert head.refusal == "its head cannot be read (tensor score.weight is missing)"
    other = write_judge(tmp_path / "b")
    write_score_head(other, "another reranker", None, other)  # type: ignore[arg-type]
    head = read_score_head(other)
    assert head is not None
    assert head.refusal == "the words around its queries and documents are not known here"
