"""Embeddings, ranking and scores over the fake engine, with the openai client."""

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from lmdeploy.model_metadata.pooling import Pooling, pooling_of, read_pooling, write_pooling
from openai_gateway.settings import Settings
from tests.gateway.conftest import MODEL
from tests.support.fake_triton import FakeTriton, embedding_of, token_ids
from tests.support.gateways import openai_client, running_gateway

TEXTS = ["one", "another text", "one"]


def write_modules(
    directory: Path, *, steps: tuple[str, ...] = ("Transformer", "Pooling", "Normalize"), **pooling: object
) -> Path:
    """Write what sentence-transformers has alongside a model."""
    kinds = [
        {"idx": i, "path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(steps)
    ]
    (directory / "modules.json").write_text(json.dumps(kinds))
    (directory / "config.json").write_text("{}")
    (directory / "1_Pooling").mkdir(exist_ok=True)
    config = {"word_embedding_dimension": 4, "pooling_mode_cls_token": False} | (
        pooling or {"pooling_mode_lasttoken": True}
    )
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = write_modules(tmp_path_factory.mktemp("model"))
    write_pooling(directory, directory)
    with FakeTriton(MODEL) as fake, running_gateway(Settings(triton_address=fake.address, engine_dir=directory)) as url:
        yield url


@pytest.fixture
def client(embedder: str) -> Iterator[openai.OpenAI]:
    with openai_client(embedder) as made:
        yield made


def expected(text: str) -> np.ndarray:
    vector = np.array(struct.unpack("<4f", embedding_of(token_ids(text))))
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_texts_become_vectors_of_length_one(client: openai.OpenAI, encoding: str | None) -> None:
    more = {} if encoding is None else {"encoding_format": encoding}
    response = client.embeddings.create(model=MODEL, input=TEXTS, **more)  # without a format it asks for base64
    assert [entry.index for entry in response.data] == [0, 1, 2]
    for text, entry in zip(TEXTS, response.data, strict=True):
        vector = entry.embedding if encoding != "base64" else np.frombuffer(base64.b64decode(entry.embedding), "<f4")
        np.testing.assert_allclose(vector, expected(text), rtol=1e-6)
    assert response.usage.prompt_tokens == response.usage.total_tokens == 3 * 7
    assert response.model == MODEL


def test_a_task_is_an_adapter_with_the_prompt_of_its_name(tmp_path: Path) -> None:
    directory = write_modules(tmp_path)
    (directory / "config.json").write_text(json.dumps({"task_instructions": {"retrieval.query": "Q ", "other": "O "}}))
    write_pooling(directory, directory)
    with FakeTriton(MODEL) as fake:
        fake.adapters = {"retrieval.query": "", "plain": ""}
        with running_gateway(Settings(triton_address=fake.address, engine_dir=directory)) as url:

            def embed(**body: str) -> httpx.Response:
                return httpx.post(f"{url}/v1/embeddings", json={"input": "one", **body}, trust_env=False)

            for body, adapter, text in (
                ({"task": "retrieval.query"}, "retrieval.query", "Q one"),
                ({"task": "retrieval.query", "prompt_name": "other"}, "retrieval.query", "O one"),
                ({"task": "plain"}, "plain", "one"),
                ({}, None, "one"),
            ):
                response = embed(**body).raise_for_status().json()
                np.testing.assert_allclose(response["data"][0]["embedding"], expected(text), rtol=1e-6)
                assert response["model"] == MODEL
                assert fake.requests[-1].inputs.get("lora_name") == adapter
            rejected = embed(task="clustering")
            assert rejected.status_code == 400
            assert rejected.json()["error"]["param"] == "task"
            assert "(retrieval.query, plain), got clustering" in rejected.json()["error"]["message"]


def test_a_model_of_tasks_takes_the_first_unless_another_is_asked_for(tmp_path: Path) -> None:
    directory = write_modules(tmp_path, steps=("Transformer",))
    config = {"model_type": "jina_embeddings_v5", "task_names": ["retrieval", "clustering"]}
    (directory / "config.json").write_text(json.dumps(config))
    write_pooling(directory, directory)
    with FakeTriton(MODEL) as fake:
        fake.adapters = dict.fromkeys(config["task_names"], "")
        with running_gateway(Settings(triton_address=fake.address, engine_dir=directory)) as url:
            for body, adapter in (
                ({}, "retrieval"),
                ({"task": "clustering"}, "clustering"),
                ({"model": "clustering"}, "clustering"),
            ):
                response = httpx.post(f"{url}/v1/embeddings", json={"input": "one", **body}, trust_env=False)
                (entry,) = response.raise_for_status().json()["data"]
                np.testing.assert_allclose(entry["embedding"], expected("one"), rtol=1e-6)
                assert fake.requests[-1].inputs.get("lora_name") == adapter


def test_tei_clients_say_whether_vectors_have_length_one(embedder: str) -> None:
    for normalizes, correct in ((True, expected("one")), (False, struct.unpack("<4f", embedding_of(token_ids("one"))))):
        body = {"inputs": "one", "normalize": normalizes}
        (vector,) = httpx.post(f"{embedder}/embed", json=body).raise_for_status().json()
        np.testing.assert_allclose(vector, correct, rtol=1e-6)


def test_tokens_are_texts_too_and_vectors_can_be_cut(client: openai.OpenAI) -> None:
    ids = [token_ids("one"), token_ids("another text")]
    response = client.embeddings.create(model=MODEL, input=ids, encoding_format="float", dimensions=2)
    for text, entry in zip(TEXTS, response.data, strict=False):
        cut = expected(text)[:2]
        np.testing.assert_allclose(entry.embedding, cut / np.linalg.norm(cut), rtol=1e-6)
    alone = client.embeddings.create(model=MODEL, input=ids[0], encoding_format="float")
    np.testing.assert_allclose(alone.data[0].embedding, expected("one"), rtol=1e-6)


def test_more_texts_than_run_at_once_come_in_their_order(client: openai.OpenAI) -> None:
    texts = [f"text {'abcd' * (number % 7)} {number}" for number in range(150)]
    response = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    np.testing.assert_allclose(
        [entry.embedding for entry in response.data], [expected(text) for text in texts], rtol=1e-6
    )


def test_documents_are_ranked_by_their_nearness_to_the_query(embedder: str) -> None:
    documents = ["abcabc", {"text": "abab"}, "zzzzz"]
    texts = ["abcabc", "abab", "zzzzz"]
    scores = [float(expected("ababab") @ expected(text)) for text in texts]
    order = sorted(range(3), key=lambda index: -scores[index])
    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        response = httpx.post(
            f"{embedder}{path}", json={"query": "ababab", "documents": documents}, trust_env=False
        ).json()
        assert [result["index"] for result in response["results"]] == order
        assert [result["document"]["text"] for result in response["results"]] == [texts[index] for index in order]
        np.testing.assert_allclose(
            [result["relevance_score"] for result in response["results"]], sorted(scores)[::-1], rtol=1e-5
        )
    request = {"query": "ababab", "documents": documents, "top_n": 1, "return_documents": False}
    (best,) = httpx.post(f"{embedder}/v1/rerank", json=request, trust_env=False).json()["results"]
    assert (best["index"], best["document"]) == (order[0], None)


def test_pairs_have_scores(embedder: str) -> None:
    one_to_two = httpx.post(
        f"{embedder}/v1/score", json={"text_1": "ab", "text_2": ["ab", "zz"]}, trust_env=False
    ).json()
    np.testing.assert_allclose(
        [entry["score"] for entry in one_to_two["data"]], [1, expected("ab") @ expected("zz")], rtol=1e-5
    )
    wrong = httpx.post(f"{embedder}/v1/score", json={"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, trust_env=False)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "text_1")


def test_what_cannot_be_is_refused(embedder: str, http: httpx.Client) -> None:
    too_long = httpx.post(f"{embedder}/v1/embeddings", json={"input": "a", "dimensions": 5}, trust_env=False)
    assert (too_long.status_code, too_long.json()["error"]["param"]) == (400, "dimensions")
    assert "at most 4" in too_long.json()["error"]["message"]
    for wrong in ("", [], [""], [[]], 1):
        assert httpx.post(f"{embedder}/v1/embeddings", json={"input": wrong}, trust_env=False).status_code in (400, 422)
    writes = http.post("/v1/embeddings", json={"input": "a"})
    assert (writes.status_code, writes.json()["error"]["param"]) == (400, "model")
    assert writes.json()["message"] == f"The model `{MODEL}` makes no embeddings: its checkpoint has no modules.json."


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pooling_mode_mean_tokens": True}, "its pooling is mean_tokens; supported: lasttoken"),
        ({"pooling_mode": "mean"}, "its pooling is mean; supported: lasttoken"),
        ({"steps": ("Transformer", "Pooling", "CNN")}, "its step CNN is not supported"),
        ({"steps": ("Transformer",)}, "modules.json has no pooling"),
        (
            {"steps": ("Transformer", "Pooling", "Pooling")},
            "its steps are Transformer, Pooling, Pooling; "
            "expected Transformer, Pooling, then any of Dense and Normalize",
        ),
    ],
)
def test_other_ways_to_pool_are_refused_by_name(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    found = pooling_of(write_modules(tmp_path, **changes))  # type: ignore[arg-type]
    assert found.refusal == reason


@pytest.mark.parametrize(
    ("file", "fields", "reason"),
    [
        ("1_Pooling/config.json", {"pooling_mode_lasttoken": True, "layer_weights": [1]}, "layer_weights is [1]"),
        ("2_Normalize/config.json", {"p": 1}, "p is 1"),
        ("sentence_bert_config.json", {"max_seq_length": 9, "tokenizer_args": {"a": 1}}, 'tokenizer_args is {"a": 1}'),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, 'transformer_task is "fill-mask"'),
        ("config_sentence_transformers.json", {"later": "set", "prompts": {}}, 'later is "set"'),
        ("config_sentence_transformers.json", {"later": None, "__version__": {"pytorch": "2"}}, ""),
        # As sentence-transformers 5.5 writes them.
        ("1_Pooling/config.json", {"embedding_dimension": 4, "pooling_mode": "lasttoken", "include_prompt": True}, ""),
        (
            "sentence_bert_config.json",
            {
                "transformer_task": "feature-extraction",
                "module_output_name": "token_embeddings",
                "modality_config": {"text": {}},
            },
            "",
        ),
        ("sentence_bert_config.json", {"max_seq_length": 8, "model_args": {"trust_remote_code": True}}, ""),
    ],
)
def test_a_field_that_is_set_and_not_used_is_refused_by_name(
    file: str, fields: dict[str, object], reason: str, tmp_path: Path
) -> None:
    write_modules(tmp_path)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(json.dumps(fields))
    found = pooling_of(tmp_path)
    assert found.refusal == (f"{file}: {reason}, which is not supported" if reason else "")


def test_pooling_is_read_as_published(tmp_path: Path) -> None:
    assert pooling_of(tmp_path) is None
    assert pooling_of(write_modules(tmp_path)) == Pooling(normalizes=True)
    assert pooling_of(write_modules(tmp_path, steps=("Transformer", "Pooling"), pooling_mode="lasttoken")) == Pooling()
    (tmp_path / "config.json").write_text('{"is_causal": false}')
    write_pooling(tmp_path, tmp_path)
    kept = read_pooling(tmp_path)
    assert kept.refusal == "its attention is bidirectional, which is not supported"
    (tmp_path / "modules.json").write_text("[{}]")
    broken = pooling_of(tmp_path)
    assert broken.refusal.startswith("modules.json and what it names cannot be read")
